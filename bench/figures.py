"""From samples to figures: medians with their spread, and ratios within repeats."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

Figure = dict[str, Any]  #: median, low, high and how many samples; plain, for JSON


def spread(values: Sequence[float]) -> Figure:
    """The median, and between which values all lie.

    >>> spread([3.0, 1.0, 2.0])
    {'median': 2.0, 'low': 1.0, 'high': 3.0, 'samples': 3}
    """
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "samples": len(values)}


def ratio(over: Sequence[float], under: Sequence[float]) -> Figure:
    """Of two systems, repeat by repeat: what disturbed one repeat disturbed both."""
    return spread([a / b for a, b in zip(over, under, strict=False)])


class Samples:
    """What was measured so far, by what it was measured of and by name."""

    def __init__(self) -> None:
        self.by_key: dict[Hashable, dict[str, list[float]]] = {}

    def add(self, key: Hashable, found: Mapping[str, float]) -> None:
        """One repeat's figures."""
        for name, value in found.items():
            self.by_key.setdefault(key, {}).setdefault(name, []).append(value)

    def items(self) -> Iterable[tuple[Any, dict[str, list[float]]]]:
        """In the order they were first measured."""
        return self.by_key.items()


def slowest(reports: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of what each rank measured, the longest: a collective is over when it is over for everybody."""
    return {name: max(report[name] for report in reports) for name in reports[0]}


def mean(reports: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over the ranks."""
    return {name: statistics.fmean(report[name] for report in reports) for name in reports[0]}
