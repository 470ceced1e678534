"""Checks of a model's options. Owns their error messages; every check is made here and nowhere else."""

from __future__ import annotations

import math
from typing import TypeGuard

from outpace.errors import InvalidRules


def check_least(least: float, **options: object) -> None:
    """Refuses what is not a finite number, `least` or more."""
    for name, value in options.items():
        if not (_is_number(value) and least <= value < math.inf):
            raise InvalidRules(f"{name}={value!r} must be a finite number, {least:g} or more")


def check_above(bound: float, **options: object) -> None:
    """Refuses what is not a finite number above `bound`."""
    for name, value in options.items():
        if not (_is_number(value) and bound < value < math.inf):
            raise InvalidRules(f"{name}={value!r} must be a finite number above {bound:g}")


def check_count(k: object) -> None:
    """Refuses what is not a number of ranks."""
    if not _is_whole(k) or k < 0:
        raise InvalidRules(f"k={k!r} must be a whole number of ranks, 0 or more")


def check_seed(seed: object) -> None:
    """Refuses what is not a whole number."""
    if not _is_whole(seed):
        raise InvalidRules(f"seed={seed!r} must be a whole number")


def check_fits(k: int, world: int) -> None:
    """Refuses more delayed ranks than there are."""
    if k > world:
        raise InvalidRules(f"k={k} ranks cannot be delayed in a world of {world}; use k={world} or less")


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, float) or _is_whole(value)
