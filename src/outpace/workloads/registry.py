"""Workloads by name. Owns the table of names; adding a workload is adding a line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from outpace.spec import build
from outpace.workloads.base import Workload
from outpace.workloads.digits import Digits
from outpace.workloads.hyperplane import Hyperplane

WORKLOADS: dict[str, Callable[..., Workload]] = {"digits": Digits, "hyperplane": Hyperplane}


def names() -> list[str]:
    """All workload names."""
    return sorted(WORKLOADS)


def workload(choice: str | Workload, seed: int = 0) -> Workload:
    """The workload itself, from its name with options or as an object. A seed among the options goes before `seed`.

    >>> workload("hyperplane", seed=7).seed
    7
    """
    if not isinstance(choice, str):
        return choice
    return build(choice, {name: partial(maker, seed=seed) for name, maker in WORKLOADS.items()}, "workload")
