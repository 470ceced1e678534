"""How long the first rounds take, while memory is used for the first time, beside later ones; contributions and all."""

from __future__ import annotations

import time
from typing import Any

import torch.distributed as dist

import outpace
from bench.bare import BareRank, join_gloo
from bench.figures import Samples, ratio, spread
from bench.run import Run

RANKS, ELEMENTS, FIRST, WARM = 8, 6_553_600, 10, 20
QUICK_RANKS, QUICK_ELEMENTS = 2, 262_144


def measure(run: Run) -> dict[str, Any]:
    """Of the slowest rank."""
    samples = Samples()
    ranks, elements = (QUICK_RANKS, QUICK_ELEMENTS) if run.quick else (RANKS, ELEMENTS)
    with run.until_ctrl_c():
        for _ in run.repeats("first rounds"):
            reports = outpace.spawn(_rounds, ranks, (elements,))
            rounds = [max(seconds) for seconds in zip(*reports, strict=True)]
            samples.add("rounds", {str(number): seconds for number, seconds in enumerate(rounds)})
    found = samples.by_key["rounds"]
    warm = found.pop(str(FIRST))
    return {
        "ranks": ranks,
        "mb": elements * 4 / 2**20,
        "warm": spread(warm),
        "rounds": [{"seconds": spread(values), "ratio": ratio(values, warm)} for values in found.values()],
    }


def _rounds(elements: int) -> list[float]:
    """In each rank: the seconds of the first rounds, and the mean of later ones."""
    join_gloo()
    rank = BareRank(elements, "allreduce", deposits=True)
    dist.barrier()
    found = [_seconds(rank, 1) for _ in range(FIRST)]
    rank.warm_up()
    dist.barrier()
    found.append(_seconds(rank, WARM))
    rank.close()
    return found


def _seconds(rank: BareRank, times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        rank.step()
    return (time.perf_counter() - began) / times
