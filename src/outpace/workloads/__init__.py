"""Workloads: built-in training tasks, each with real data and a metric to compare models by.

This file is the table of their names; adding a workload is adding a line.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from outpace.spec import build
from outpace.workloads.base import Metric, Score, Workload
from outpace.workloads.code import Code
from outpace.workloads.digits import Digits
from outpace.workloads.hyperplane import Hyperplane
from outpace.workloads.rollouts import Rollouts
from outpace.workloads.sequences import Sequences
from outpace.workloads.vision import Vision

__all__ = [
    "WORKLOADS",
    "Code",
    "Digits",
    "Hyperplane",
    "Metric",
    "Rollouts",
    "Score",
    "Sequences",
    "Vision",
    "Workload",
    "names",
    "workload",
]

WORKLOADS: dict[str, Callable[..., Workload]] = {
    "hyperplane": Hyperplane,
    "digits": Digits,
    "vision": Vision,
    "sequences": Sequences,
    "code": Code,
    "rollouts": Rollouts,
}


def names() -> list[str]:
    return sorted(WORKLOADS)


def workload(choice: str | Workload, seed: int = 0) -> Workload:
    """The workload itself, from its name with options or as an object. A seed among the options overrides `seed`.

    >>> workload("hyperplane", seed=7).seed
    7
    """
    if not isinstance(choice, str):
        return choice
    return build(choice, {name: partial(maker, seed=seed) for name, maker in WORKLOADS.items()}, "workload")
