"""The papers' micro-benchmark: 32 ranks call an allreduce, rank r comes r ms late; how long is a call?

All iterations begin at fixed times on the shared clock, for every system, so that no barrier is in the figures. A call
of ours goes from a rank's own gradients to the averaged vector, which it can read in place. The papers' rules are
without grace and without repair of late work, for which a quorum is raised where too much would be late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist

import outpace
from bench import open_mpi
from bench.bare import BareRank, join_gloo
from bench.figures import Figure, Samples, ratio, spread
from bench.run import Run
from bench.schedule import Calls, Schedule

RANKS, ITERATIONS = 32, 64
QUICK_RANKS, QUICK_ITERATIONS = 8, 8
SIZES = {"64 B": 16, "4 KB": 1024, "256 KB": 65_536, "4 MB": 1_048_576}
PERIODS_S = {"4 MB": 0.4}  #: long enough for everybody but Gloo; page and JSON say how many calls began late
USUAL_PERIOD_S = 0.1
GLOO_PERIODS, GLOO_ITERATIONS = 5, 8  #: Gloo needs longer than all others for a call: fewer, further apart
QUICK_SIZES = ("64 B", "256 KB")
SYSTEMS = {
    "solo": "eager:quorum=solo,grace=0,repair=none",
    "majority": "eager:quorum=majority,grace=0,repair=none",
    "majority-random": "eager:quorum=majority-random,grace=0,repair=none",
    "full": "allreduce",
    "solo, default grace": "eager-solo",
    "majority, default grace": "eager-majority",
}
PUBLISHED = {"solo": 53.32, "majority-random": 2.46}  #: times as fast as MPI_Allreduce, on a Cray
BASELINE = "open mpi"
MOST_REPEATS = 3


def measure(run: Run) -> dict[str, Any]:
    """All systems, size by size."""
    latencies, late = Samples(), Samples()
    ranks, iterations = (QUICK_RANKS, QUICK_ITERATIONS) if run.quick else (RANKS, ITERATIONS)
    with run.until_ctrl_c():
        for _ in run.repeats("skew", MOST_REPEATS):
            for size in QUICK_SIZES if run.quick else SIZES:
                run.say(f"skew: {ranks} ranks, {size}")
                schedule = Schedule(iterations, PERIODS_S.get(size, USUAL_PERIOD_S))
                for name, calls in _once(ranks, SIZES[size], schedule).items():
                    latencies.add(size, {name: fmean(of_rank.latency_s for of_rank in calls)})
                    late.add(size, {name: fmean(of_rank.began_late for of_rank in calls)})
    return {
        "ranks": ranks,
        "iterations": iterations,
        "repeats": min(run.repeat, MOST_REPEATS),
        "has_open_mpi": open_mpi.is_installed(),
        "published": PUBLISHED,
        "rows": [_row(size, found, late.by_key[size]) for size, found in latencies.items()],
    }


def _once(ranks: int, elements: int, schedule: Schedule) -> dict[str, Sequence[Calls]]:
    """By system, what each rank saw."""
    reports = outpace.spawn(_ours_and_gloo, ranks, (elements, schedule))
    found: dict[str, Sequence[Calls]] = {name: [report[name] for report in reports] for name in reports[0]}
    if open_mpi.is_installed():
        found[BASELINE] = open_mpi.skewed(ranks, elements, schedule)
    return found


def _ours_and_gloo(elements: int, schedule: Schedule) -> dict[str, Calls]:
    """In each rank."""
    join_gloo()
    found = {}
    for name, choice in SYSTEMS.items():
        rank = BareRank(elements, choice, deposits=True)
        found[name] = schedule.run(rank.step, dist.get_rank(), _agreed(schedule.start()))
        rank.close()  # without a barrier before: a rank that is behind may still wait for a quorum
    tensor = torch.ones(elements)
    rarely = replace(schedule, iterations=GLOO_ITERATIONS, period_s=GLOO_PERIODS * schedule.period_s, warm_up=2)
    found["gloo"] = rarely.run(lambda: dist.all_reduce(tensor), dist.get_rank(), _agreed(schedule.start()))
    dist.barrier()
    return found


def _agreed(start: float) -> float:
    """Rank 0's."""
    said = torch.tensor([start], dtype=torch.float64)
    dist.broadcast(said, 0)
    return said.item()


def _row(size: str, found: dict[str, list[float]], late: dict[str, list[float]]) -> dict[str, Any]:
    ratios: dict[str, Figure] = {}
    for name in (*SYSTEMS, "gloo"):
        if BASELINE in found:
            ratios[name] = ratio(found[BASELINE], found[name])
    return {
        "size": size,
        "seconds": {name: spread(values) for name, values in found.items()},
        "began_late": {name: fmean(shares) for name, shares in late.items()},
        "ratios": ratios,
    }
