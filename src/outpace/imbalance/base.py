"""What an imbalance is, and the checks of its options. A model knows neither clocks nor processes."""

from __future__ import annotations

import math
from typing import Protocol

from outpace.errors import InvalidRules
from outpace.spec import is_number, is_whole


class Imbalance(Protocol):
    """How long every rank computes at every step.

    A pure function: whoever asks with the same arguments gets the same answer, in whatever order and on whatever rank,
    so nobody has to tell the others.
    """

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        """Seconds this rank computes at this step of its own, where it would take `base_s` undisturbed; never negative.

        Steps count from 0. Raises `InvalidRules` in a world that the model does not fit.
        """


def check_least(least: float, **options: object) -> None:
    for name, value in options.items():
        if not (is_number(value) and least <= value < math.inf):
            raise InvalidRules(f"{name}={value!r} must be a finite number, {least:g} or more")


def check_above(bound: float, **options: object) -> None:
    for name, value in options.items():
        if not (is_number(value) and bound < value < math.inf):
            raise InvalidRules(f"{name}={value!r} must be a finite number above {bound:g}")


def check_count(k: object) -> None:
    if not is_whole(k) or k < 0:
        raise InvalidRules(f"k={k!r} must be a whole number of ranks, 0 or more")


def check_seed(seed: object) -> None:
    if not is_whole(seed):
        raise InvalidRules(f"seed={seed!r} must be a whole number")


def check_fits(k: int, world: int) -> None:
    if k > world:
        raise InvalidRules(f"k={k} ranks cannot be delayed in a world of {world}; use k={world} or less")
