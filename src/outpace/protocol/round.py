"""A contribution and a round, as the ledger knows them. Owns the arithmetic of who counts how much."""

from __future__ import annotations

from typing import NamedTuple


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
