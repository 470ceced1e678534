"""Who takes part. Owns the life of each rank as the log tells it; decides nothing about rounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from outpace.protocol.round import Round

ACTIVE, SYNCING, FINISHED = "active", "syncing", "finished"


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

    @property
    def counts(self) -> bool:
        """Living, or finished: what `min_ranks` and the divisor `world` count."""
        return self.alive or self.state == FINISHED

    @property
    def unfinished(self) -> bool:
        """Living and not finished: what the quorum is taken of, and whom `synchronize` waits for."""
        return self.alive and self.state != FINISHED


class Members:
    """All ranks that ever joined, by rank."""

    def __init__(self) -> None:
        self.by_rank: dict[int, Member] = {}
        self.tallies: dict[int, Tally] = {}
        self.counted: set[int] = set()  #: ranks living or finished

    def join(self, rank: int, incarnation: int, round_: int) -> bool:
        """Takes in a rank. False for an incarnation that is not newer than the one known."""
        known = self.by_rank.get(rank)
        if known is not None and incarnation <= known.incarnation:
            return False
        self.by_rank[rank] = Member(rank, incarnation, last_round=round_)
        self.tallies.setdefault(rank, Tally())
        return True

    def current(self, rank: int, incarnation: int) -> Member | None:
        """The member, if this incarnation of it lives."""
        member = self.by_rank.get(rank)
        if member is None or member.incarnation != incarnation or not member.alive:
            return None
        return member

    def unfinished(self) -> list[Member]:
        """Living members with data left."""
        return [m for m in self.by_rank.values() if m.unfinished]

    def expected(self) -> list[int]:
        """Who has not finished, or was killed before it could know that all have: these are still to come."""
        return [m.rank for m in self.by_rank.values() if m.state != FINISHED or not (m.alive or m.has_ended)]

    def follow(self, member: Member) -> None:
        """Brings `counted` up to date after this one changed."""
        if member.counts:
            self.counted.add(member.rank)
        else:
            self.counted.discard(member.rank)

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

    def to_state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        members = sorted(self.by_rank.values(), key=lambda m: m.rank)
        return {
            "members": [
                [m.rank, m.incarnation, m.state, m.alive, m.last_step, m.last_round, m.has_ended] for m in members
            ],
            "tallies": [
                [rank, t.on_time, t.carried, t.dropped, sorted(t.late_by.items())]
                for rank, t in sorted(self.tallies.items())
            ],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Members:
        """The inverse of `to_state`."""
        members = cls()
        members.by_rank = {row[0]: Member(*row) for row in state["members"]}
        for rank, on_time, carried, dropped, late_by in state["tallies"]:
            counts = Counter({int(k): int(v) for k, v in late_by})
            members.tallies[rank] = Tally(on_time, carried, dropped, counts)
        return members
