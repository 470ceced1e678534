"""Imbalances by name. Owns the table of names; adding a model is adding a line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature

from outpace.imbalance.base import Imbalance
from outpace.imbalance.models import Balanced, RandomRanks
from outpace.spec import build

IMBALANCES: dict[str, Callable[..., Imbalance]] = {
    "none": Balanced,
    "random": RandomRanks,
}


def names() -> list[str]:
    """All imbalance names."""
    return sorted(IMBALANCES)


def imbalance(choice: str | Imbalance, seed: int = 0) -> Imbalance:
    """The model itself, from its name with options or as an object. A seed among the options goes before `seed`.

    >>> imbalance("random:k=2,delay_ms=300", seed=7)
    RandomRanks(k=2, delay_ms=300, seed=7)
    """
    if not isinstance(choice, str):
        return choice
    makers = {name: _seeded(maker, seed) for name, maker in IMBALANCES.items()}
    return build(choice, makers, "imbalance")


def _seeded(maker: Callable[..., Imbalance], seed: int) -> Callable[..., Imbalance]:
    return partial(maker, seed=seed) if "seed" in signature(maker).parameters else maker
