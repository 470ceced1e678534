"""What late work weighs. Owns the discount by age, and what was withheld by it until it is given back.

A gradient that comes several rounds late points away from where the weights were then. At full weight it makes large
learning rates unstable; dropped, its rank would be heard less than others. So it enters its round with a part of its
weight, and the rest stays to its rank's credit and goes to what that rank gives later:

    weight of what is late by `lag` rounds:  1 / (1 + lag)^2
    weight of what is on time:               1 + its rank's credit, but at most 2, and only as far as the round is no
                                             longer a step than one that everybody is in

A rank that is always late is never on time to get it back. What it is owed beyond one whole contribution goes to its
late ones, so that over time every rank weighs what it has contributed: for each rank, the weights of its contributions
and its credit add up to their number.
"""

from __future__ import annotations

from outpace.protocol.round import Contribution, Round
from outpace.protocol.rules import Rules
from outpace.protocol.state import Part

MOST = 2.0  #: that a contribution weighs: more would be its noise at a learning rate that is not meant for it
HELD = 1.0  #: contributions' worth that a rank is owed before its late ones are given any of it


class Discount(Part):
    _owed: dict[int, float]

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._owed = {}

    def owed(self, rank: int) -> float:
        """What was withheld from this rank and not given back yet, in contributions."""
        return self._owed.get(rank, 0.0)

    def weights(self, sealed: Round) -> tuple[float, ...]:
        """The weight of each contribution of a sealed round. Empty if each has its full weight."""
        contributions = sealed.contributions
        lags = [self._lag(sealed, c) for c in contributions]
        if not self._rules.discounts or not (any(lags) or any(self.owed(c.rank) for c in contributions)):
            return ()
        weights = [self._late(c, lag) if lag else 1.0 for c, lag in zip(contributions, lags, strict=True)]
        self._give_back(sealed, weights, [i for i, lag in enumerate(lags) if not lag])
        return tuple(weights)

    def settle(self, result: Round) -> None:
        """A round is complete: what it withheld is owed, and what it gave back is not any more."""
        for contribution, weight in zip(result.contributions, result.weights, strict=False):
            if weight != 1.0:
                share = (1.0 - weight) * self._size(contribution)
                self._owed[contribution.rank] = max(0.0, self.owed(contribution.rank) + share)

    def _lag(self, sealed: Round, contribution: Contribution) -> int:
        """Rounds beyond what is usual where nobody is slow."""
        return max(0, sealed.staleness(contribution) - self._rules.usual_lag)

    def _size(self, contribution: Contribution) -> float:
        """In contributions: where micro-batches are counted, the finished share of a whole one."""
        return contribution.samples / contribution.planned if self._rules.of_sums else 1.0

    def _late(self, contribution: Contribution, lag: int) -> float:
        usual = 1 + self._rules.usual_lag
        weight = (usual / (usual + lag)) ** 2
        beyond = (self.owed(contribution.rank) - HELD) / self._size(contribution)
        return weight + min(1.0 - weight, max(0.0, beyond))

    def _give_back(self, sealed: Round, weights: list[float], fresh: list[int]) -> None:
        """Adds to what is on time what its rank is owed, as far as there is room."""
        contributions = sealed.contributions
        sizes = [self._size(c) for c in contributions]
        room = sealed.world - sum(map(float.__mul__, weights, sizes))
        wanted = {i: min(self.owed(contributions[i].rank), (MOST - 1.0) * sizes[i]) for i in fresh}
        total = sum(wanted.values())
        if total > 0 and room > 0:
            part = min(1.0, room / total)
            for i in fresh:
                weights[i] += part * wanted[i] / sizes[i]
