"""A contribution and a sealed round, as the ledger knows them: what each contribution weighs in it, and where its
result is kept until everybody has applied it.

Owns the arithmetic of who counts how much and how long a step is, and which result is in which slot, and given up when.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from copy import copy
from typing import NamedTuple

from outpace.protocol.rules import Rules
from outpace.protocol.state import Part

MOST = 2.0  #: that a contribution weighs: more would be its noise at a learning rate that is not meant for it
HELD = 1.0  #: contributions' worth that a rank is owed before its late ones are given any of it
IN_A_ROW = 3  #: contributions late, one after the other, before more are given any of it: its rank is slow, not unlucky
SMALL = 0.5  #: of the usual size: rounds that vary as they do in most strategies are whole steps
FOLLOWS = 0.1  #: part of a difference that averages follow in a round: momentum is mostly 0.9
AHEAD = 1.5  #: times the mean lateness is looked ahead
NOT_WORTH_IT = 0.02  #: rounds: to look so little ahead changes nothing


class Contribution(NamedTuple):
    """What one rank gives to one round: whole model, all or nothing."""

    rank: int
    incarnation: int
    step: int
    version: int
    samples: float
    row: int
    late: bool
    planned: float = 1.0  #: samples it would have had if its rank had finished everything
    pieces: int = 1  #: arrivals it is the sum of


class Round(NamedTuple):
    """A sealed round: who is in it and what its sum is divided by. The same on every rank that reads the log."""

    number: int
    contributions: tuple[Contribution, ...]  #: in an order that depends only on the set
    world: int  #: members when it was sealed, and whoever contributed
    hyper_from: Contribution | None  #: whose hyper-parameters it is applied with; None keeps the last ones
    attempt: int = 0
    slot: int = -1
    clip: float = 1.0
    void: bool = False  #: nothing to apply: nobody contributed, or the sum overflowed
    refused: tuple[Contribution, ...] = ()
    weights: tuple[float, ...] = ()  #: of the contributions, if they are not all 1
    stride: float = 1.0  #: what part of a whole step it is, beside the rounds before it
    ahead: float = 0.0  #: how far ahead of it gradients are computed next, in steps as long as its own

    def staleness(self, contribution: Contribution) -> int:
        """Rounds between what it was computed at and where it entered."""
        return self.number - contribution.version

    def size(self, of_sums: bool) -> float:
        """How much of a round that everybody is in, with everything finished, this one is: at most 1."""
        weights = self.weights or (1.0,) * len(self.contributions)
        sizes = [c.samples / c.planned if of_sums else 1.0 for c in self.contributions]
        return min(1.0, sum(map(float.__mul__, weights, sizes)) / self.world)

    def factors(self, normalise: str) -> tuple[list[float], float]:
        """(factor of each contribution in the sum, factor of the sum)."""
        weights = list(self.weights) or [1.0] * len(self.contributions)
        if normalise == "samples":
            weights = [weight * c.samples for weight, c in zip(weights, self.contributions, strict=True)]
        return weights, 1.0 / (self._divisor(normalise, weights) or 1.0)

    def _divisor(self, normalise: str, weights: list[float]) -> float:
        if normalise == "world":
            return self.world
        if normalise in ("contributors", "samples"):
            return sum(weights)
        if normalise == "finished":
            return sum(weight * c.samples for weight, c in zip(weights, self.contributions, strict=True))
        if normalise == "planned":  # of everybody, also of those who are not in it
            return self.world * sum(c.planned for c in self.contributions) / max(1, len(self.contributions))
        return 1.0  # "sum"


class UsualSize(Part):
    """How large rounds are lately, and so what part of a step a round is that has little in it.

    Momentum was gathered in rounds of the usual size, and every round takes one whole step with it. Where a round has
    only what was left over (at the end of an epoch, or when ranks meet), such a step goes far on old momentum, and its
    few gradients hardly correct it: two of them cost a network in training 2 to 5 points of accuracy. So a round of
    less than half the usual size is as much of a step as it has of that size. Of plain SGD, whose step is its gradient
    alone, nothing need be shortened. The average follows the sizes as fast as momentum usually follows gradients.
    """

    _usual: float | None

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._usual = None

    def stride(self, sealed: Round) -> float:
        size = sealed.size(self._rules.of_sums)
        return size / self._usual if self._usual is not None and 0 < size < SMALL * self._usual else 1.0

    def settle(self, result: Round) -> None:
        size = result.size(self._rules.of_sums)
        self._usual = size if self._usual is None else self._usual + FOLLOWS * (size - self._usual)


class Lateness(Part):
    """How late work is lately, and so how far ahead of the weights ranks compute (`replica.look_ahead`).

    The mean over all contributions, those on time included: which of the gradients that are computed now will be late
    is not known, but how many usually are. Half as much again as that mean learned best where it was tried (decision
    23); looking further than needed only damps more.
    """

    _mean: float
    _rounds: int

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._mean, self._rounds = 0.0, 0

    @property
    def ahead(self) -> float:
        return AHEAD * self._mean if self._rules.looks_ahead and self._mean > NOT_WORTH_IT else 0.0

    def settle(self, result: Round) -> None:
        if self._rules.looks_ahead and result.contributions:
            lags = [result.number - c.version for c in result.contributions]
            self._rounds += 1
            self._mean += max(FOLLOWS, 1 / self._rounds) * (sum(lags) / len(lags) - self._mean)


class Discount(Part):
    """What late work weighs, and what is withheld until it is given back.

    A gradient that comes several rounds late points away from where the weights were then. At full weight it makes
    large learning rates unstable; dropped, its rank would be heard less than others. So it enters its round with a part
    of its weight, and the rest stays to its rank's credit and goes to what that rank gives later:

        weight of what is late by `lag` rounds:  1 / (1 + lag)^2, or where ranks look ahead 4 / (1 + lag)^2, at most 1
        weight of what is on time:               1 + its rank's credit, but at most 2, and only as far as the round is
                                                 neither a longer step nor a noisier one than with everybody in it

    A rank that is always late is never on time to get it back. After some late ones in a row, what it is owed beyond
    one whole contribution goes to those that follow, so that over time it weighs what it has contributed. For each
    rank, the weights of its contributions and its credit add up to their number.
    """

    _owed: dict[int, float]
    _late_in_a_row: dict[int, int]  # the last contributions of each rank

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._owed, self._late_in_a_row = {}, {}

    def owed(self, rank: int) -> float:
        """What was withheld from this rank and not given back yet, in contributions."""
        return self._owed.get(rank, 0.0)

    def weights(self, sealed: Round) -> tuple[float, ...]:
        """The weight of each contribution of a sealed round. Empty if each has its full weight."""
        if not self._rules.discounts:
            return ()
        contributions, lags = sealed.contributions, self._lags(sealed)
        if not any(lags) and not any(self._owed.get(c.rank) for c in contributions):
            return ()
        weights = [self._late(c, lag) if lag else 1.0 for c, lag in zip(contributions, lags, strict=True)]
        self._give_back(sealed, weights, [i for i, lag in enumerate(lags) if not lag])
        return tuple(weights)

    def settle(self, result: Round) -> None:
        """A round is complete: what it withheld is owed, and what it gave back is not any more."""
        if not self._rules.discounts:
            return
        in_a_row = self._late_in_a_row
        for contribution, lag in zip(result.contributions, self._lags(result), strict=True):
            in_a_row[contribution.rank] = in_a_row.get(contribution.rank, 0) + 1 if lag else 0
        for contribution, weight in zip(result.contributions, result.weights, strict=False):
            if weight != 1.0:
                share = (1.0 - weight) * self._size(contribution)
                self._owed[contribution.rank] = max(0.0, self.owed(contribution.rank) + share)

    def _lags(self, sealed: Round) -> list[int]:
        """Of each contribution, the rounds beyond what is usual where nobody is slow."""
        first = sealed.number - self._rules.usual_lag
        return [max(0, first - c.version) for c in sealed.contributions]

    def _size(self, contribution: Contribution) -> float:
        """In contributions: where micro-batches are counted, the finished share of a whole one."""
        return contribution.samples / contribution.planned if self._rules.of_sums else 1.0

    def _late(self, contribution: Contribution, lag: int) -> float:
        usual = 1 + self._rules.usual_lag
        weight = (usual / (usual + lag)) ** 2
        if self._late_in_a_row.get(contribution.rank, 0) < IN_A_ROW:
            return weight
        beyond = (self.owed(contribution.rank) - HELD) / self._size(contribution)
        return weight + min(1.0 - weight, max(0.0, beyond))

    def _give_back(self, sealed: Round, weights: list[float], fresh: list[int]) -> None:
        """Adds to what is on time what its rank is owed, as far as there is room: in the sum of all weights, which is
        how long a step it is, and in the sum of their squares, which is how noisy."""
        contributions = sealed.contributions
        sizes = [self._size(c) for c in contributions]
        before = list(map(float.__mul__, weights, sizes))
        wanted = {i: min(self.owed(contributions[i].rank), (MOST - 1.0) * sizes[i]) for i in fresh}
        total = sum(wanted.values())
        length, noise = sealed.world - sum(before), sealed.world - sum(w * w for w in before)
        if total > 0 and length > 0 and noise > 0:
            across, squared = sum(before[i] * wanted[i] for i in fresh), sum(w * w for w in wanted.values())
            part = min(1.0, length / total, (math.sqrt(across * across + squared * noise) - across) / squared)
            for i in fresh:
                weights[i] += part * wanted[i] / sizes[i]


class Results(Part):
    """The results that somebody still needs, each in a slot of its own: those that not every rank has applied.

    Arrivals say which version their rank has. A rank that is expected back needs what it needed when it died.
    """

    completed: dict[int, Round]  #: the rounds whose results are kept
    _places: dict[int, int]  # slots of older ones, kept, too, whose records are not known here
    oldest: int  #: no result of a round before this one is kept
    applied: dict[int, int]  #: rank -> the version it is known to have
    new: set[int]  #: ranks that have joined, and have not said yet from which version they go on

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        #: result slots: those kept, one being written, and one for each rank that may be stopped holding one
        self.slots = rules.max_staleness + rules.world + 1 + rules.world
        self.completed, self._places, self.oldest = {}, {}, 0
        self.applied, self.new = {}, set()
        self._ranks_at: Counter[int] = Counter()  # how many ranks have which version
        self._least = 0  # the lowest of these versions

    def free_slots(self, reducing: Round | None) -> Iterator[int]:
        """The lowest first: those were written last, and are in caches; the others need never be touched."""
        used = {r.slot for r in self.completed.values()}.union(self._places.values())
        if reducing is not None:
            used.add(reducing.slot)
        return (slot for slot in range(self.slots) if slot not in used)

    def add(self, result: Round, covered: int) -> None:
        """Keeps at most R results, and older ones that the latest snapshot, of version `covered`, does not cover yet.

        Where late contributions count, each rank can complete one round before anybody has applied the first of them;
        given up, that one would be lost to all.
        """
        self.completed[result.number] = result
        kept = len(self._places) + len(self.completed)
        while kept > self._rules.max_staleness:
            if self.oldest >= covered and kept <= self._rules.max_staleness + self._rules.world:
                return
            self._give_up_oldest()
            kept -= 1

    # -- who needs them --------------------------------------------------------------------------------------------

    def join(self, rank: int) -> None:
        """A rank begins: from a snapshot, with which it needs what is kept now."""
        self._note(rank, self.oldest)
        self.new.add(rank)

    def has_begun(self, rank: int) -> None:
        self.new.discard(rank)

    def has_applied(self, rank: int, version: int) -> None:
        self.new.discard(rank)
        if self.applied.get(rank) != version:
            self._note(rank, version)
            if self.oldest < self._least:
                self._give_up_applied()

    def forget(self, rank: int) -> None:
        """A rank is gone for good."""
        self.new.discard(rank)
        if rank in self.applied:
            self._note(rank, None)
            self._give_up_applied()

    @property
    def least(self) -> int:
        """The version that the rank furthest behind has."""
        return self._least

    def cannot_go_on(self, rank: int) -> bool:
        """Whether a rank needs a snapshot: it begins, or what it would have to apply next is no longer kept."""
        return rank in self.new or self.applied.get(rank, self.oldest) < self.oldest

    def _note(self, rank: int, version: int | None) -> None:
        """That a rank has this version, or is gone."""
        before, ranks_at = self.applied.get(rank), self._ranks_at
        if before is not None:
            ranks_at[before] -= 1
            if not ranks_at[before]:
                del ranks_at[before]
        if version is None:
            del self.applied[rank]
        else:
            self.applied[rank] = version
            ranks_at[version] = ranks_at.get(version, 0) + 1
        if before not in ranks_at or version is None or version < self._least:
            self._least = min(ranks_at, default=self.oldest)

    def _give_up_applied(self) -> None:
        while self.oldest < self._least and (self._places or self.completed):
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        oldest = self._places or self.completed
        number = next(iter(oldest))
        del oldest[number]
        self.oldest = number + 1

    # -- beginnings ------------------------------------------------------------------------------------------------

    def from_version(self, covered: int) -> Results:
        """As whoever begins from a snapshot of this version needs them: of the rounds before, only the places."""
        results = copy(self)
        results.completed, results._places = {}, dict(self._places)
        for number, record in self.completed.items():
            if number >= covered:
                results.completed[number] = record
            else:
                results._places[number] = record.slot
        return results

    def begin_anew(self, version: int) -> None:
        """Rounds are renumbered, and all begin from a snapshot of this version: what is kept belongs to old numbers."""
        self.completed, self._places, self.oldest = {}, {}, version
        for rank in list(self.applied):
            self.join(rank)

    def _restore_what_follows(self) -> None:
        self._ranks_at = Counter(self.applied.values())
        self._least = min(self._ranks_at, default=self.oldest)
