"""Where the time of a full-quorum round goes: coming together, summing, and everybody getting the result.

Contributions lie in the arena already. The times of all ranks are taken on the clock they share.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch.distributed as dist

import outpace
from bench.bare import BareRank, join_gloo
from bench.figures import Samples, spread
from bench.run import Run

RANKS, SIZES = 8, {"4 B": 1, "1 MB": 262_144, "25 MB": 6_553_600}
QUICK_RANKS, QUICK_SIZES = 2, ("4 B",)
ROUNDS = 70  #: a multiple of the rounds between two snapshots
Span = tuple[float, float]  #: from, to


@dataclass
class Step:
    """Of one rank."""

    end_s: float = 0.0
    sums: list[Span] = field(default_factory=list)  #: when it had a part in summing
    snapshot_s: float = 0.0


@dataclass
class Seen:
    """By one rank."""

    steps: list[Step]
    cpu_s: float  #: of a round
    sleeps: float  #: in a round


def measure(run: Run) -> dict[str, Any]:
    """Sizes in turn."""
    samples = Samples()
    ranks, sizes = (QUICK_RANKS, QUICK_SIZES) if run.quick else (RANKS, tuple(SIZES))
    with run.until_ctrl_c():
        for _ in run.repeats("anatomy"):
            for size in sizes:
                samples.add(size, _parts(outpace.spawn(_watched, ranks, (SIZES[size],))))
    rows = [
        {"size": size, **{name: spread(values) for name, values in found.items()}} for size, found in samples.items()
    ]
    return {"ranks": ranks, "rounds": ROUNDS, "rows": rows}


def _watched(elements: int) -> Seen:
    """In each rank."""
    join_gloo()
    rank = BareRank(elements, "allreduce", deposits=False)
    rank.warm_up()
    steps = [Step()]

    def noted(call: Callable[..., Any], note: Callable[[float, float], None]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            began = time.monotonic()
            found = call(*given)
            note(began, time.monotonic())
            return found

        return timed

    def add_snapshot(began: float, ended: float) -> None:
        steps[-1].snapshot_s += ended - began

    engine: Any = rank.engine
    reduction, snapshots = engine.memory.reducing.__self__.reduction, engine.memory.snapshots
    reduction.work = noted(reduction.work, lambda *span: steps[-1].sums.append(span))
    snapshots.write = noted(snapshots.write, add_snapshot)
    dist.barrier()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(ROUNDS):
        rank.step()
        steps[-1].end_s = time.monotonic()
        steps.append(Step())
    after = resource.getrusage(resource.RUSAGE_SELF)
    rank.close()
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Seen(steps[:-1], cpu_s / ROUNDS, (after.ru_nvcsw - before.ru_nvcsw) / ROUNDS)


def _parts(ranks: list[Seen]) -> dict[str, float]:
    """Means over the rounds."""
    together, summing, getting, total = [], [], [], []
    rounds = list(zip(*(rank.steps for rank in ranks), strict=True))
    for before, now in pairwise(rounds):
        over, end = max(step.end_s for step in before), max(step.end_s for step in now)
        sums = [span for step in now for span in step.sums]
        first, last = min(began for began, _ in sums), max(ended for _, ended in sums)
        together.append(first - over)
        summing.append(last - first)
        getting.append(end - last)
        total.append(end - over)
    return {
        "total_s": fmean(total),
        "together_s": fmean(together),
        "summing_s": fmean(summing),
        "getting_s": fmean(getting),
        "snapshot_s": sum(step.snapshot_s for rank in ranks for step in rank.steps) / ROUNDS,
        "cpu_s": fmean(rank.cpu_s for rank in ranks),
        "sleeps": fmean(rank.sleeps for rank in ranks),
    }
