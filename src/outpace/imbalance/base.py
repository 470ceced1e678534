"""What an imbalance is. Owns the interface; a model knows neither clocks nor processes."""

from __future__ import annotations

from typing import Protocol


class Imbalance(Protocol):
    """A delay for every rank at every step.

    A pure function: ranks that ask with the same arguments get the same answer, so nobody has to tell the others.
    """

    def delay_s(self, rank: int, world: int, step: int) -> float:
        """Seconds by which this rank is slower at this step of its own. Raises `InvalidRules` in a world too small."""
