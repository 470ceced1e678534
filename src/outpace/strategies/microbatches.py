"""What strategies have in common that count finished micro-batches. Owns what becomes of those that were not begun."""

from __future__ import annotations

from dataclasses import dataclass

from outpace.errors import InvalidRules
from outpace.strategies.base import Strategy

RESTS = ("carry", "drop")
DIVISORS = ("finished", "planned")


@dataclass(frozen=True, kw_only=True)
class CountsMicrobatches(Strategy):
    """A round may end before all micro-batches are computed, and is divided by those that are counted.

    rest: micro-batches that were not begun are carried as data into the next round ("carry"), or dropped ("drop").
    normalise: divide by the "planned" micro-batches, so that the learning rate follows the work; or by the "finished".
    """

    rest: str = "carry"
    normalise: str = "planned"
    min_ranks: int | None = None
    codec: str = "none"

    polls = True

    def __post_init__(self) -> None:
        if self.rest not in RESTS:
            raise InvalidRules(f"rest={self.rest!r} is unknown; choose one of {', '.join(RESTS)}")
        if self.normalise not in DIVISORS:
            raise InvalidRules(f"normalise={self.normalise!r} must be finished or planned: micro-batches are counted")

    @property
    def drops_rest(self) -> bool:  # type: ignore[override]
        """Whether what was not begun is thrown away."""
        return self.rest == "drop"
