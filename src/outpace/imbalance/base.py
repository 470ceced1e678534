"""What an imbalance is, and the checks of its options. A model knows neither clocks nor processes."""

from __future__ import annotations

import math
from dataclasses import field, fields
from functools import partial
from typing import Any, Protocol

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


class Checked:
    """A dataclass whose options are checked when it is made: each says in its default what it may be."""

    def __post_init__(self) -> None:
        for option in fields(self):  # type: ignore[arg-type]
            if "check" in option.metadata:
                option.metadata["check"](option.name, getattr(self, option.name))


def at_least(least: float, default: float) -> Any:
    return field(default=default, metadata={"check": partial(check_least, least)})


def above(bound: float, default: float) -> Any:
    return field(default=default, metadata={"check": partial(_check_above, bound)})


def ranks(default: int) -> Any:
    return field(default=default, metadata={"check": _check_ranks})


def seed() -> Any:
    return field(default=0, metadata={"check": _check_seed})


def check_least(least: float, name: str, value: object) -> None:
    if not (is_number(value) and least <= value < math.inf):
        raise InvalidRules(f"{name}={value!r} must be a finite number, {least:g} or more")


def _check_above(bound: float, name: str, value: object) -> None:
    if not (is_number(value) and bound < value < math.inf):
        raise InvalidRules(f"{name}={value!r} must be a finite number above {bound:g}")


def _check_ranks(name: str, value: object) -> None:
    if not is_whole(value) or value < 0:
        raise InvalidRules(f"{name}={value!r} must be a whole number of ranks, 0 or more")


def _check_seed(name: str, value: object) -> None:
    if not is_whole(value):
        raise InvalidRules(f"{name}={value!r} must be a whole number")


def check_fits(k: int, world: int) -> None:
    if k > world:
        raise InvalidRules(f"k={k} ranks cannot be delayed in a world of {world}; use k={world} or less")
