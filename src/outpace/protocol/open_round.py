"""The open round: who is in it, who may still come, which rows are taken, and whether its quorum is met. Seals nothing.

Every change costs no more than the contributions it is about, so that a thousand ranks can be followed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from outpace.protocol.members import ACTIVE, Member
from outpace.protocol.round import Contribution
from outpace.protocol.rules import Rules
from outpace.protocol.state import Part


class OpenRound(Part):
    on_time: list[Contribution]  #: count towards the quorum
    carried: list[Contribution]  #: included, but do not count towards the quorum: late ones, and parts
    rows: set[tuple[int, int]]  #: (rank, row) of contributions that no complete round includes

    def __init__(self, rows: int = 2) -> None:
        self._rows = range(rows)  # of each rank
        self.on_time, self.carried, self.rows = [], [], set()
        self.unfinished: set[int] = set()  #: ranks the quorum is taken of
        self.present: set[int] = set()  #: ranks on time; one restarted within the round counts once
        self.can: set[int] = set()  #: ranks that may still join it on time
        self.samples = 0.0  #: finished ones, of all that is on time
        self.planned = 0.0  #: what the rank that plans most wants to finish
        self._here: set[tuple[int, int]] = set()  # (rank, incarnation) of those on time
        self._active: dict[int, int] = {}  # rank -> incarnation of those who are not in `synchronize`
        self._parts: dict[tuple[int, int], Contribution] = {}  # of those carried, by (rank, incarnation)
        self._initiator: int | None = None  # drawn once for as long as the candidates stay the same

    @property
    def is_empty(self) -> bool:
        return not (self.on_time or self.carried)

    @property
    def everybody_is_here(self) -> bool:
        """Whether nobody can come who is not here."""
        return self.can <= self.present

    def free_row(self, rank: int) -> int | None:
        """A row this rank may write. Row 0 where possible: others are touched only while something is pending."""
        for row in self._rows:
            if (rank, row) not in self.rows:
                return row
        return None

    def initiator(self, seed: int) -> int:
        """The paper's majority: a rank drawn from a shared seed; the round is sealed when it arrives."""
        if self._initiator is None:
            self._initiator = random.Random(seed).choice(sorted(self.present | self.can))
        return self._initiator

    def part_of(self, rank: int, incarnation: int) -> Contribution | None:
        return self._parts.get((rank, incarnation))

    def add_to(self, part: Contribution) -> None:
        """Another contribution is about to be added that includes this one."""
        del self._parts[part.rank, part.incarnation]
        self.carried.remove(part)
        self.rows.discard((part.rank, part.row))
        self.samples -= part.samples

    def add(self, contribution: Contribution) -> None:
        """Takes in one that counts towards the quorum."""
        rank, incarnation, _, _, samples, row, late, planned, _ = contribution
        self.on_time.append(contribution)
        self.rows.add((rank, row))
        self._here.add((rank, incarnation))
        self.present.add(rank)
        self.can.discard(rank)
        if not late:
            self._count(samples, planned)

    def carry(self, contribution: Contribution, is_part: bool = False) -> None:
        """Takes in one that does not count towards the quorum. One that is a part may be added to."""
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
        """Takes out what came first of those that count; the others stay for the next rounds."""
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
        """Freezes the set, in an order that depends on nothing else, and opens the next round."""
        frozen = tuple(sorted(self.on_time + self.carried))
        came = self.present
        self.on_time, self.carried = [], []
        self.present, self._here = set(), set()
        self._parts = {}
        self.samples = self.planned = 0.0
        self._initiator = None
        for rank in came:  # whether the others can come depends on their rows alone, and those are as they were
            self._look_at(rank)
        return frozen

    def free(self, contributions: Iterable[Contribution]) -> None:
        """The round of these is complete: their rows may be written again."""
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
        """Whether this rank may still be on time. One with no free row cannot: awaiting it would be a deadlock."""
        self._initiator = None
        incarnation = self._active.get(rank)
        if incarnation is None or (rank, incarnation) in self._here or self.free_row(rank) is None:
            self.can.discard(rank)
        else:
            self.can.add(rank)

    def _restore_what_follows(self) -> None:
        """All but what depends on the members: see `follow`."""
        self._here = {(c.rank, c.incarnation) for c in self.on_time}
        self.present = {c.rank for c in self.on_time}
        self._parts = {(c.rank, c.incarnation): c for c in self.carried if not c.late}
        for contribution in self.on_time + self.carried:
            if not contribution.late:
                self._count(contribution.samples, contribution.planned)


def quorum_is_met(rules: Rules, number: int, open_round: OpenRound, enough: int) -> bool:
    """Whether enough are on time for the open round; more than can come are never asked for.

    number: of the open round. enough: arrivals that make the quorum, where it is a plain count or chosen.
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
