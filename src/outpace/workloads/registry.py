"""Workloads by name. Owns the table of names; adding a workload is adding a line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import getdoc

from outpace.spec import build
from outpace.workloads.base import Workload
from outpace.workloads.code import Code
from outpace.workloads.digits import Digits
from outpace.workloads.hyperplane import Hyperplane
from outpace.workloads.rollouts import Rollouts
from outpace.workloads.sequences import Sequences
from outpace.workloads.vision import Vision

WORKLOADS: dict[str, Callable[..., Workload]] = {
    "hyperplane": Hyperplane,
    "digits": Digits,
    "vision": Vision,
    "sequences": Sequences,
    "code": Code,
    "rollouts": Rollouts,
}


def names() -> list[str]:
    """All workload names."""
    return sorted(WORKLOADS)


def table() -> list[tuple[str, str]]:
    """Each name with one line about its workload, for those who choose: the equal costs first, then the unequal."""
    return [(name, (getdoc(maker) or "").partition("\n")[0]) for name, maker in WORKLOADS.items()]


def workload(choice: str | Workload, seed: int = 0) -> Workload:
    """The workload itself, from its name with options or as an object. A seed among the options goes before `seed`.

    >>> workload("hyperplane", seed=7).seed
    7
    """
    if not isinstance(choice, str):
        return choice
    return build(choice, {name: partial(maker, seed=seed) for name, maker in WORKLOADS.items()}, "workload")
