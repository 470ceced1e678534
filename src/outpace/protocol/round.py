"""A contribution and a round, as the ledger knows them. Owns the arithmetic of who counts how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


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

    def staleness(self, contribution: Contribution) -> int:
        """Rounds between what it was computed at and where it entered."""
        return self.number - contribution.version

    def weights(self, normalise: str) -> tuple[list[float], float]:
        """(factor of each contribution in the sum, factor of the sum)."""
        count = len(self.contributions)
        if normalise == "samples":
            samples = [c.samples for c in self.contributions]
            return samples, 1.0 / (sum(samples) or 1.0)
        return [1.0] * count, 1.0 / (self._divisor(normalise) or 1.0)

    def _divisor(self, normalise: str) -> float:
        if normalise == "world":
            return self.world
        if normalise == "contributors":
            return len(self.contributions)
        if normalise == "finished":
            return sum(c.samples for c in self.contributions)
        if normalise == "planned":  # of everybody, also of those who are not in it
            return self.world * sum(c.planned for c in self.contributions) / max(1, len(self.contributions))
        return 1.0  # "sum"

    def to_state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        return self._asdict()

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Round:
        """The inverse of `to_state`."""
        origin = state["hyper_from"]
        return cls(
            **{
                **state,
                "contributions": contributions_from(state["contributions"]),
                "refused": contributions_from(state["refused"]),
                "hyper_from": None if origin is None else Contribution(*origin),
            }
        )


def contributions_from(rows: Sequence[Sequence[Any]]) -> tuple[Contribution, ...]:
    """Contributions from plain values."""
    return tuple(Contribution(*row) for row in rows)
