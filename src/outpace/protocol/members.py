"""Who takes part, and who waits in `synchronize`. Owns the life of each rank as the log tells it; decides nothing about
rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from outpace.protocol.round import Round
from outpace.protocol.state import Part

ACTIVE, AWAY, SYNCING, FINISHED = "active", "away", "syncing", "finished"

MASK_BITS = 63  #: of a set of optimizers in a record; more of them in one process share bits


@dataclass
class Tally:
    """What became of one rank's contributions, over all its incarnations."""

    on_time: int = 0
    carried: int = 0  #: late, and included in a later round
    dropped: int = 0  #: recorded with a reason, never applied
    late_by: Counter[int] = field(default_factory=Counter)  #: staleness of those that were late

    @property
    def staleness(self) -> Counter[int]:
        """Rounds between computing and applying, for all that were applied."""
        return Counter({0: self.on_time} if self.on_time else {}) + self.late_by


@dataclass
class Member:
    """One rank's current incarnation."""

    rank: int
    incarnation: int
    state: str = ACTIVE
    alive: bool = True
    last_step: int = 0
    last_round: int = 0  #: the round that was open when it last arrived, or joined
    has_ended: bool = False  #: it has finished, and its process ends of its own accord
    away_in: int = -1  #: while it is away: the optimizer that it waits in
    is_at_end: bool = False  #: while it is away: it waits there for all to finish
    unfinished_elsewhere: int = 0  #: while it synchronises: its other optimizers that it has not finished

    @property
    def counts(self) -> bool:
        """Living, or finished: what `min_ranks` and the divisor `world` count."""
        return self.alive or self.state == FINISHED

    @property
    def is_expected(self) -> bool:
        """It has not finished, or was killed before it knew that all have: it will come back."""
        return self.state != FINISHED or not (self.alive or self.has_ended)

    @property
    def unfinished(self) -> bool:
        """Living and not finished: what the quorum is taken of, and whom `synchronize` waits for."""
        return self.alive and self.state != FINISHED


class Members(Part):
    by_rank: dict[int, Member]
    tallies: dict[int, Tally]

    def __init__(self) -> None:
        self.by_rank, self.tallies = {}, {}
        self.counted: set[int] = set()  #: ranks living or finished
        self.away: set[int] = set()  #: ranks that wait in another of their optimizers

    def join(self, rank: int, incarnation: int, round_: int) -> bool:
        """Takes in a rank. False for an incarnation that is not newer than the one known."""
        known = self.by_rank.get(rank)
        if known is not None and incarnation <= known.incarnation:
            return False
        self.by_rank[rank] = Member(rank, incarnation, last_round=round_)
        self.tallies.setdefault(rank, Tally())
        return True

    def current(self, rank: int, incarnation: int) -> Member | None:
        member = self.by_rank.get(rank)
        if member is None or member.incarnation != incarnation or not member.alive:
            return None
        return member

    def unfinished(self) -> list[Member]:
        return [m for m in self.by_rank.values() if m.unfinished]

    def expected(self) -> list[int]:
        """Ranks that have not finished, or were killed before they knew that all have: these will come back."""
        return [m.rank for m in self.by_rank.values() if m.is_expected]

    def follow(self, member: Member) -> None:
        if member.counts:
            self.counted.add(member.rank)
        else:
            self.counted.discard(member.rank)
        if member.alive and member.state == AWAY:
            self.away.add(member.rank)
        else:
            self.away.discard(member.rank)

    def all_to_meet(self) -> list[Member]:
        """Whom a synchronisation waits for: all with data left, but not for who waits in another optimizer until one of
        those who synchronise here finishes that."""
        unfinished = self.unfinished()
        held_up = 0
        for member in unfinished:
            if member.state == SYNCING:
                held_up |= member.unfinished_elsewhere
        return [m for m in unfinished if not (m.state == AWAY and m.is_at_end and held_up >> m.away_in % MASK_BITS & 1)]

    def tally(self, result: Round) -> None:
        """A round is complete: counts what became of each contribution in it. Refused ones were counted before."""
        number, void, tallies = result.number, result.void, self.tallies
        for rank, _, _, version, _, _, _, _, pieces in result.contributions:
            tally = tallies[rank]
            if void:
                tally.dropped += pieces
            elif version < number:
                tally.carried += pieces
                tally.late_by[number - version] += pieces
            else:
                tally.on_time += pieces


class Synchronisation(Part):
    """All ranks with data left wait for each other, and go on from one version. What the last one ended with."""

    generation: int  #: synchronisations completed
    version: int  #: the version the last one ended at
    resumed: bool  #: the last one began anew from a checkpoint
    ranks: tuple[int, ...]  #: who took part in the last one
    steps: int  #: local steps of the rank that had made the most; all go on counting from there
    source: int  #: the rank whose checkpoint is the furthest, the lowest of several: all begin from its replica
    _most_steps: int  # of those who are in the next one
    _resume: int  # one more than the round that the next one resumes from; 0 for none

    def __init__(self) -> None:
        self.generation = self.version = self.steps = self.source = 0
        self._most_steps = self._resume = 0
        self.resumed, self.ranks = False, ()

    def enter(self, rank: int, resume: int, steps: int) -> None:
        """A rank that enters brings a checkpoint of round `resume - 1`, or none with 0, and has made so many steps."""
        if resume and resume >= self._resume:
            self.source = rank if resume > self._resume else min(rank, self.source)
            self._resume = resume
        self._most_steps = max(self._most_steps, steps)

    def complete(self, round_: int, ranks: Sequence[int]) -> int:
        """All have arrived. Returns the round to go on with: a checkpoint's, if that is further."""
        self.resumed = self._resume > 0
        self.version = max(round_, self._resume - 1)
        self._resume = 0
        self.steps = self._most_steps
        self.generation += 1
        self.ranks = tuple(sorted(ranks))
        return self.version
