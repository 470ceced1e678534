"""`make guard`: whether rounds have become slower, by ratios within one run. Exits 1 if one is at about half its speed.

Each figure is the fastest of ours against the fastest of a yardstick on the same machine, over repeats that alternate,
so that neither another machine nor a busy one looks like a loss. It measures until all are reached, or time is over.
"""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

from bench.collectives import once
from bench.figures import Samples
from bench.run import Run

RANKS = 4
LEAST_REPEATS, MOST_S = 2, 30.0


class Threshold(NamedTuple):
    """At least so many times as fast as the yardstick."""

    size: str
    measure: str
    yardstick: str
    least: float
    measured: float  #: when the threshold was set, on 2 cores: about twice as much


THRESHOLDS = (
    Threshold("64 KB", "round", "gloo", least=3.5, measured=7.3),
    Threshold("64 KB", "end to end", "gloo", least=3.0, measured=6.3),
    Threshold("1 MB", "round", "gloo", least=3.0, measured=5.9),
    Threshold("1 MB", "end to end", "gloo", least=2.2, measured=4.5),
    Threshold("25 MB", "round", "gloo", least=2.7, measured=5.5),
    Threshold("25 MB", "end to end", "gloo", least=1.5, measured=3.1),
    Threshold("25 MB", "round", "limit", least=0.3, measured=0.61),
)


def main() -> int:
    """The exit code."""
    run, samples, began = Run(), Samples(), time.monotonic()
    repeats = 0
    while repeats < LEAST_REPEATS or (time.monotonic() - began < MOST_S and any(_lost(samples))):
        repeats += 1
        for size in dict.fromkeys(threshold.size for threshold in THRESHOLDS):
            run.say(f"guard: repeat {repeats}, {RANKS} ranks, {size}")
            samples.add(size, once(RANKS, size, with_open_mpi=False))
    print(f"{RANKS} ranks, times as fast as the yardstick, fastest of {repeats} against fastest of {repeats}:")
    for threshold in THRESHOLDS:
        found = _ratio(threshold, samples)
        verdict = "" if found >= threshold.least else "   LOST"
        what = f"{threshold.size} {threshold.measure} against {threshold.yardstick}"
        print(f"  {what:32} {found:6.2f}   at least {threshold.least:g}, was {threshold.measured:g}{verdict}")
    lost = _lost(samples)
    if lost:
        print(f"{len(lost)} of {len(THRESHOLDS)} are below: a round has become slower. `python -m bench` tells more.")
    return 1 if lost else 0


def _ratio(threshold: Threshold, samples: Samples) -> float:
    found = samples.by_key[threshold.size]
    return min(found[threshold.yardstick]) / min(found[threshold.measure])


def _lost(samples: Samples) -> list[Threshold]:
    return [threshold for threshold in THRESHOLDS if _ratio(threshold, samples) < threshold.least]


if __name__ == "__main__":
    sys.exit(main())
