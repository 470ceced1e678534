"""Strategies by name. Owns the table of names; adding a strategy is adding a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from inspect import Parameter, Signature
from typing import Any

from outpace.spec import build
from outpace.strategies.base import Strategy
from outpace.strategies.eager import Eager


def _eager(**fixed: Any) -> Callable[..., Strategy]:
    """Eager with some options fixed, so that the name says what it does and cannot be talked out of it."""
    maker = partial(Eager, **fixed)
    open_options = [f.name for f in fields(Eager) if f.name not in fixed]
    maker.__signature__ = Signature([Parameter(n, Parameter.KEYWORD_ONLY) for n in open_options])  # type: ignore[attr-defined]
    return maker


STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "allreduce": _eager(quorum="full"),
    "eager": Eager,
    "eager-solo": _eager(quorum="solo"),
    "eager-majority": _eager(quorum="majority"),
}


def names() -> list[str]:
    """All strategy names."""
    return sorted(STRATEGIES)


def strategy(choice: str | Strategy) -> Strategy:
    """The strategy itself, from its name with options ("eager:quorum=3,late=carry") or as an object.

    >>> strategy("eager:quorum=3,late=drop").quorum
    3
    """
    return choice if isinstance(choice, Strategy) else build(choice, STRATEGIES, "strategy")
