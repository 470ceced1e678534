"""Imbalance: who is slow, when, and by how much. For demonstrations and tests, on top of whatever a machine does.

This file is the table of names; adding a model is adding a line.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature

from outpace.errors import InvalidRules
from outpace.imbalance.models import (
    Balanced,
    Bursts,
    ExponentialNoise,
    GammaNoise,
    Imbalance,
    Lengths,
    LogNormalNoise,
    NormalNoise,
    ParetoNoise,
    Pauses,
    RandomRanks,
    Recorded,
    Rollouts,
    ShiftingSkew,
    Skew,
    SlowRanks,
)
from outpace.spec import build

__all__ = [
    "Balanced",
    "Bursts",
    "ExponentialNoise",
    "GammaNoise",
    "Imbalance",
    "Lengths",
    "LogNormalNoise",
    "NormalNoise",
    "ParetoNoise",
    "Pauses",
    "RandomRanks",
    "Rollouts",
    "ShiftingSkew",
    "Skew",
    "SlowRanks",
    "imbalance",
    "names",
]

IMBALANCES: dict[str, Callable[..., Imbalance]] = {
    "none": Balanced,
    "random": RandomRanks,
    "skew": Skew,
    "shifting-skew": ShiftingSkew,
    "slow": SlowRanks,
    "normal": NormalNoise,
    "lognormal": LogNormalNoise,
    "gamma": GammaNoise,
    "exponential": ExponentialNoise,
    "pareto": ParetoNoise,
    "pauses": Pauses,
    "bursts": Bursts,
    "lengths": Lengths,
    "rollouts": Rollouts,
    "trace": Recorded,
}


def names() -> list[str]:
    return sorted(IMBALANCES)


def imbalance(choice: str | Imbalance, seed: int = 0) -> Imbalance:
    """The model itself, from its name with options or as an object. A seed among the options overrides `seed`.

    >>> imbalance("random:k=2,delay_ms=300", seed=7)
    RandomRanks(k=2, delay_ms=300, seed=7)
    """
    if not isinstance(choice, str):
        if not hasattr(choice, "compute_s"):
            raise InvalidRules(
                f"imbalance={choice!r} must be a name ({', '.join(names())}) or a model with compute_s()"
            )
        return choice
    makers = {
        name: partial(maker, seed=seed) if "seed" in signature(maker).parameters else maker
        for name, maker in IMBALANCES.items()
    }
    return build(choice, makers, "imbalance")
