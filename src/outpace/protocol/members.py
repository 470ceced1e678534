"""Which ranks take part in the training, in a synchronisation and in the open round. Owns the state of each rank by the
log, which ranks may still arrive in the open round, which rows are taken, and whether the quorum is met. Seals nothing.

No change costs more than the contributions it concerns, so that it scales to thousands of ranks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from outpace.protocol.round import Contribution, Round
from outpace.protocol.rules import Rules
from outpace.protocol.state import Part

ACTIVE, AWAY, SYNCING, FINISHED = "active", "away", "syncing", "finished"

MASK_BITS = 63  #: of a set of optimizers in an event; if a process has more, some share a bit


@dataclass
class Tally:
    """What became of one rank's contributions, over all its incarnations."""

    on_time: int = 0
    carried: int = 0  #: late, and included in a later round
    dropped: int = 0  #: recorded with a reason, never applied
    late_by: Counter[int] = field(default_factory=Counter)  #: late ones by staleness

    @property
    def staleness(self) -> Counter[int]:
        """All that were applied, by the rounds between computing and applying."""
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
    has_ended: bool = False  #: it has finished, and its process ends normally
    away_in: int = -1  #: while it is away: the optimizer that it waits in
    is_at_end: bool = False  #: while it is away: whether it waits there in `finish`
    unfinished_elsewhere: int = 0  #: while it synchronises: its other unfinished optimizers, as a bit mask

    @property
    def counts(self) -> bool:
        """Alive or finished: what `min_ranks` and the divisor `world` count."""
        return self.alive or self.state == FINISHED

    @property
    def is_expected(self) -> bool:
        """Whether it comes back if it dies: it has not finished, or was killed before it knew that all have."""
        return self.state != FINISHED or not (self.alive or self.has_ended)

    @property
    def unfinished(self) -> bool:
        """Alive and not finished: the ranks that the quorum is taken of and `synchronize` waits for."""
        return self.alive and self.state != FINISHED


class Members(Part):
    by_rank: dict[int, Member]
    tallies: dict[int, Tally]

    def __init__(self) -> None:
        self.by_rank, self.tallies = {}, {}
        self.counted: set[int] = set()  #: ranks alive or finished
        self.away: set[int] = set()  #: ranks that wait in another of their optimizers

    def join(self, rank: int, incarnation: int, round_: int) -> bool:
        """Adds a rank. False if this incarnation is not newer than the known one."""
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
        """Ranks that come back if they die."""
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
        """The ranks that a synchronisation waits for: all with data left, except those that wait at the end of another
        optimizer for a rank that synchronises here."""
        unfinished = self.unfinished()
        held_up = 0
        for member in unfinished:
            if member.state == SYNCING:
                held_up |= member.unfinished_elsewhere
        return [m for m in unfinished if not (m.state == AWAY and m.is_at_end and held_up >> m.away_in % MASK_BITS & 1)]

    def tally(self, result: Round) -> None:
        """Counts the outcome of each contribution to a complete round. Refused ones were counted before."""
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
    """All ranks with data left wait for each other, and continue from one version. Holds how the last one ended."""

    generation: int  #: synchronisations completed
    version: int  #: the version at the end of the last one
    resumed_in: int  #: the last one that resumed from a checkpoint, counted from 1; 0 for none
    ranks: tuple[int, ...]  #: those that took part in the last one
    steps: int  #: the most local steps of any rank; all continue counting from there
    source: int  #: the rank with the furthest checkpoint, the lowest of several: all adopt its replica
    _most_steps: int  # of the ranks in the next one
    _resume: int  # one more than the round that the next one resumes from; 0 for none

    def __init__(self) -> None:
        self.generation = self.version = self.steps = self.source = self.resumed_in = 0
        self._most_steps = self._resume = 0
        self.ranks = ()

    def enter(self, rank: int, resume: int, steps: int) -> None:
        """A rank enters, with a checkpoint of round `resume - 1`, or none if 0, after this many local steps."""
        if resume and resume >= self._resume:
            self.source = rank if resume > self._resume else min(rank, self.source)
            self._resume = resume
        self._most_steps = max(self._most_steps, steps)

    @property
    def resumed(self) -> bool:
        """Whether the last one resumed from a checkpoint."""
        return 0 < self.resumed_in == self.generation

    def complete(self, round_: int, ranks: Sequence[int]) -> int:
        """All have arrived. Returns the round to continue with: a checkpoint's, if that is further."""
        self.generation += 1
        if self._resume:
            self.resumed_in = self.generation
        self.version = max(round_, self._resume - 1)
        self._resume = 0
        self.steps = self._most_steps
        self.ranks = tuple(sorted(ranks))
        return self.version


class OpenRound(Part):
    on_time: list[Contribution]  #: those that count toward the quorum
    carried: list[Contribution]  #: late ones and parts: included, but not counted toward the quorum
    rows: set[tuple[int, int]]  #: (rank, row) of all contributions that are in no complete round yet

    def __init__(self, rows: int = 2) -> None:
        self._rows = range(rows)  # of each rank
        self.on_time, self.carried, self.rows = [], [], set()
        self.unfinished: set[int] = set()  #: ranks the quorum is taken of
        self.present: set[int] = set()  #: ranks on time; one that was restarted within the round counts once
        self.can: set[int] = set()  #: ranks that may still arrive on time
        self.samples = 0.0  #: finished samples of all that is not late
        self.planned = 0.0  #: the most samples that any rank planned
        self._here: set[tuple[int, int]] = set()  # (rank, incarnation) of those on time
        self._active: dict[int, int] = {}  # rank -> incarnation of those that can contribute now
        self._parts: dict[tuple[int, int], Contribution] = {}  # carried parts, by (rank, incarnation)
        self._initiator: int | None = None  # drawn once as long as the candidates stay the same

    @property
    def is_empty(self) -> bool:
        return not (self.on_time or self.carried)

    @property
    def everybody_is_here(self) -> bool:
        """Whether no other rank can arrive on time."""
        return self.can <= self.present

    def free_row(self, rank: int) -> int | None:
        """A row this rank may write. Row 0 if possible, so that others are used only while something is pending."""
        for row in self._rows:
            if (rank, row) not in self.rows:
                return row
        return None

    def initiator(self, seed: int) -> int:
        """The paper's majority: a rank drawn by a shared seed, whose arrival seals the round."""
        if self._initiator is None:
            self._initiator = random.Random(seed).choice(sorted(self.present | self.can))
        return self._initiator

    def part_of(self, rank: int, incarnation: int) -> Contribution | None:
        return self._parts.get((rank, incarnation))

    def add_to(self, part: Contribution) -> None:
        """Removes a part: the contribution that is about to be added includes it."""
        del self._parts[part.rank, part.incarnation]
        self.carried.remove(part)
        self.rows.discard((part.rank, part.row))
        self.samples -= part.samples

    def add(self, contribution: Contribution) -> None:
        """Adds a contribution that counts toward the quorum."""
        rank, incarnation, _, _, samples, row, late, planned, _ = contribution
        self.on_time.append(contribution)
        self.rows.add((rank, row))
        self._here.add((rank, incarnation))
        self.present.add(rank)
        self.can.discard(rank)
        if not late:
            self._count(samples, planned)

    def carry(self, contribution: Contribution, is_part: bool = False) -> None:
        """Adds a contribution that does not count toward the quorum. With `is_part`, another may be added to it."""
        rank = contribution.rank
        self.carried.append(contribution)
        self.rows.add((rank, contribution.row))
        if is_part:
            self._parts[rank, contribution.incarnation] = contribution
        if not contribution.late:
            self._count(contribution.samples, contribution.planned)
        self._look_at(rank)

    def _count(self, samples: float, planned: float) -> None:
        self.samples += samples
        if planned > self.planned:
            self.planned = planned

    def first(self) -> tuple[Contribution, ...]:
        """Takes out the first contribution that counts; the others stay for the next rounds."""
        first = self.on_time.pop(0)
        self._here.discard((first.rank, first.incarnation))
        self.present = {rank for rank, _ in self._here}
        self._look_at(first.rank)
        return (first,)

    def give_up(self, contribution: Contribution) -> None:
        rank, incarnation = contribution.rank, contribution.incarnation
        self.rows.discard((rank, contribution.row))
        if not contribution.late:
            self.samples -= contribution.samples
        if contribution in self.carried:
            self.carried.remove(contribution)
            if self._parts.get((rank, incarnation)) == contribution:
                del self._parts[rank, incarnation]
            return
        self.on_time.remove(contribution)
        self._here.discard((rank, incarnation))
        self.present = {rank for rank, _ in self._here}
        self._look_at(contribution.rank)

    def close(self) -> tuple[Contribution, ...]:
        """Opens the next round, and returns this one's contributions, in an order that depends only on the set."""
        frozen = tuple(sorted(self.on_time + self.carried))
        came = self.present
        self.on_time, self.carried = [], []
        self.present, self._here = set(), set()
        self._parts = {}
        self.samples = self.planned = 0.0
        self._initiator = None
        for rank in came:  # whether other ranks can arrive depends on their rows alone, which have not changed
            self._look_at(rank)
        return frozen

    def free(self, contributions: Iterable[Contribution]) -> None:
        """Frees the rows of a complete round's contributions."""
        rows, can = self.rows, self.can
        for rank, _, _, _, _, row, _, _, _ in contributions:
            rows.discard((rank, row))
            if rank not in can:
                self._look_at(rank)

    def follow(self, member: Member) -> None:
        rank = member.rank
        self._active.pop(rank, None)
        self.unfinished.discard(rank)
        if member.unfinished:
            self.unfinished.add(rank)
            if member.state == ACTIVE:
                self._active[rank] = member.incarnation
        self._look_at(rank)

    def _look_at(self, rank: int) -> None:
        """Updates whether this rank may still be on time. Not without a free row: waiting for it would deadlock."""
        self._initiator = None
        incarnation = self._active.get(rank)
        if incarnation is None or (rank, incarnation) in self._here or self.free_row(rank) is None:
            self.can.discard(rank)
        else:
            self.can.add(rank)

    def _restore_what_follows(self) -> None:
        """Rebuilds everything but what depends on the members, which `follow` does."""
        self._here = {(c.rank, c.incarnation) for c in self.on_time}
        self.present = {c.rank for c in self.on_time}
        self._parts = {(c.rank, c.incarnation): c for c in self.carried if not c.late}
        for contribution in self.on_time + self.carried:
            if not contribution.late:
                self._count(contribution.samples, contribution.planned)


def quorum_is_met(rules: Rules, number: int, open_round: OpenRound, enough: int) -> bool:
    """Whether enough ranks are on time. If no more can arrive, those that are there suffice.

    number: of the open round. enough: how many arrivals make the quorum, if it is a plain count or chosen.
    """
    if rules.is_count:
        here = len(open_round.present)
        return here >= enough or (here > 0 and open_round.everybody_is_here)
    quorum = rules.quorum
    if quorum == "work":
        planned = open_round.planned * len(open_round.unfinished)
        return open_round.samples >= (rules.work or planned) > 0
    if not open_round.on_time:
        return False
    if open_round.everybody_is_here:
        return True
    if quorum == "majority-random":
        return open_round.initiator(rules.seed * 1_000_003 + number) in open_round.present
    enough_done = open_round.samples >= rules.work * open_round.planned * len(open_round.unfinished)
    return enough_done and len(open_round.present) >= enough
