"""Strategies: one short file for each family of algorithms, reading like the paper's pseudo-code.

This file is the table of their names; adding a strategy is adding a line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from inspect import Parameter, Signature
from typing import Any

from outpace.codecs import codec
from outpace.errors import InvalidRules
from outpace.spec import build
from outpace.strategies.ad_psgd import ADPSGD
from outpace.strategies.base import Strategy
from outpace.strategies.decentlam import DecentLaM
from outpace.strategies.dropcompute import DropCompute
from outpace.strategies.eager import Eager
from outpace.strategies.gossip import ALDSGD, DPSGD, DSGDAAU, Matcha, NonBlockingDPSGD, NonBlockingMatcha
from outpace.strategies.local_sgd import DaSGD, LocalSGD, PostLocalSGD
from outpace.strategies.nonblocking import NonBlocking
from outpace.strategies.outer import DiLoCo, NoLoCo
from outpace.strategies.quorums import MSync, Rennala, Ringmaster
from outpace.strategies.sgp import SGP
from outpace.strategies.wagma import Wagma

__all__ = [
    "ADPSGD",
    "ALDSGD",
    "DPSGD",
    "DSGDAAU",
    "SGP",
    "STRATEGIES",
    "DaSGD",
    "DecentLaM",
    "DiLoCo",
    "DropCompute",
    "Eager",
    "LocalSGD",
    "MSync",
    "Matcha",
    "NoLoCo",
    "NonBlocking",
    "NonBlockingDPSGD",
    "NonBlockingMatcha",
    "PostLocalSGD",
    "Rennala",
    "Ringmaster",
    "Strategy",
    "Wagma",
    "names",
    "strategy",
]


def _eager(about: str, **fixed: Any) -> Callable[..., Strategy]:
    """Eager with some options fixed by the name, so that they cannot be overridden."""
    maker = partial(Eager, **fixed)
    maker.__doc__ = f"{about}\n\nThe options are those of `eager`."
    open_options = [
        Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default) for f in fields(Eager) if f.name not in fixed
    ]
    maker.__signature__ = Signature(open_options)  # type: ignore[attr-defined]
    return maker


STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "auto": _eager("A round waits for a rank only while that pays; for all, if ranks are balanced.", quorum="auto"),
    "allreduce": _eager("A round waits for every rank, as with DDP.", quorum="full"),
    "eager": Eager,
    "eager-solo": _eager("A round goes ahead with the first rank, and any that follow in the grace.", quorum="solo"),
    "eager-majority": _eager("A round goes ahead with at least half of the ranks.", quorum="majority"),
    "wagma": Wagma,
    "nonblocking": NonBlocking,
    "nonblocking-dpsgd": NonBlockingDPSGD,
    "nonblocking-matcha": NonBlockingMatcha,
    "dropcompute": DropCompute,
    "m-sync": MSync,
    "rennala": Rennala,
    "ringmaster": Ringmaster,
    "local-sgd": LocalSGD,
    "post-local-sgd": PostLocalSGD,
    "dasgd": DaSGD,
    "diloco": DiLoCo,
    "noloco": NoLoCo,
    "d-psgd": DPSGD,
    "matcha": Matcha,
    "ad-psgd": ADPSGD,
    "sgp": SGP,
    "decentlam": DecentLaM,
    "al-dsgd": ALDSGD,
    "dsgd-aau": DSGDAAU,
}


def names() -> list[str]:
    return sorted(STRATEGIES)


def strategy(choice: str | Strategy) -> Strategy:
    """A strategy, from its name with options ("eager:quorum=3,late=carry"), or the object itself.

    >>> strategy("eager:quorum=3,late=drop").quorum
    3
    """
    if isinstance(choice, type) and issubclass(choice, Strategy):
        raise InvalidRules(f"strategy={choice.__name__} is a class: give an object of it, {choice.__name__}()")
    if not isinstance(choice, str | Strategy):
        raise InvalidRules(f"strategy={choice!r} must be a name, such as 'eager-majority', or a Strategy")
    chosen = choice if isinstance(choice, Strategy) else build(choice, STRATEGIES, "strategy")
    codec(chosen.codec)  # raises if there is none of that name
    return chosen
