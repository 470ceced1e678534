"""What an imbalance is. Owns the interface; a model knows neither clocks nor processes."""

from __future__ import annotations

from typing import Protocol


class Imbalance(Protocol):
    """How long every rank computes at every step.

    A pure function: whoever asks with the same arguments gets the same answer, in whatever order and on whatever rank,
    so nobody has to tell the others.
    """

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        """Seconds this rank computes at this step of its own, where it would take `base_s` undisturbed; never negative.

        Steps count from 0. Raises `InvalidRules` in a world that the model does not fit.
        """
