"""Numbers as people read them. Owns rounding and units, so that table, charts and sentences agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

NONE = "–"  # noqa: RUF001 - a dash as it is printed: there is no such figure


class Spread(NamedTuple):
    """A figure of several attempts."""

    mean: float
    low: float
    high: float
    attempts: int


def spread(values: Sequence[float]) -> Spread | None:
    """Mean, smallest and largest; None of nothing."""
    return Spread(fmean(values), min(values), max(values), len(values)) if values else None


def seconds(value: float) -> str:
    """Three digits, and minutes where there are many.

    >>> [seconds(value) for value in (0.0421, 3.456, 14.23, 312.0)]
    ['42.1 ms', '3.46 s', '14.2 s', '5 min 12 s']
    """
    if not math.isfinite(value):
        return NONE
    if value < 0.9995:
        return f"{value * 1000:.3g} ms"
    if value < 119.5:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s"


def percent(share: float) -> str:
    """Whole ones; what is there but rounds to nothing is not called nothing.

    >>> percent(0.483), percent(0.002), percent(0.0)
    ('48%', '<1%', '0%')
    """
    if not math.isfinite(share):
        return NONE
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def times(ratio: float) -> str:
    """A speed-up.

    >>> times(1.9583)
    '1.96x'
    """
    return f"{ratio:.2f}x" if math.isfinite(ratio) else NONE


def counted(count: int, noun: str) -> str:
    """With the plural where it is due.

    >>> counted(1, "rank"), counted(8, "rank")
    ('1 rank', '8 ranks')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(names: Sequence[str]) -> str:
    """Names as a sentence has them.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
