"""What `eager-solo` adds to a step of the fastest rank, whatever the other one does.

Rank 0 steps without pause (balanced: both compute 2 ms). Measured from its gradients being ready to the end of
`step()`, less the inner optimizer's own work for the rounds applied in it. With as many ranks as cores, a core is free
for each.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from typing import Any

import torch

import outpace
from bench.figures import Samples, spread
from bench.run import Run

RANKS, ELEMENTS, STEPS, QUICK_STEPS = 2, 262_144, 300, 60
OTHERS = ("finished", "slow", "stopped", "balanced")


def measure(run: Run) -> dict[str, Any]:
    """Median and 95th percentile of a step, for each thing the other rank may do."""
    samples = Samples()
    steps = QUICK_STEPS if run.quick else STEPS
    with run.until_ctrl_c():
        for _ in run.repeats("solo step"):
            for others in OTHERS:
                added = outpace.spawn(_train, RANKS, (ELEMENTS, steps, others))[0]
                high = statistics.quantiles(added, n=20)[-1]
                samples.add(others, {"median": statistics.median(added), "high": high})
    rows = []
    for others, found in samples.items():
        rows.append({"others": others, "median_s": spread(found["median"]), "high_s": spread(found["high"])})
    return {"ranks": RANKS, "mb": ELEMENTS * 4 / 2**20, "steps": steps, "rows": rows}


def _train(elements: int, steps: int, others: str) -> list[float]:
    """Seconds added to each step of rank 0."""
    weight = torch.nn.Parameter(torch.zeros(elements))
    inner = torch.optim.SGD([weight], lr=0.01)
    opt = outpace.DistributedOptimizer(inner, "eager-solo:grace=0")
    weight.grad = torch.ones(elements)
    if int(os.environ["RANK"]) > 0:
        _follow(opt, steps, others)
        return []
    began = time.perf_counter()
    for _ in range(20):
        inner.step()
    own_s = (time.perf_counter() - began) / 20
    added = []
    for _ in range(steps):
        time.sleep(0.002 if others == "balanced" else 0)
        version, began = opt.stats.version, time.perf_counter()
        opt.step()
        whole_s = time.perf_counter() - began
        added.append(whole_s - own_s * (opt.stats.version - version))
    for rank in range(1, opt._engine.world):
        if pid := opt._engine.log.life.holder(rank):
            os.kill(pid, signal.SIGCONT)
    return added


def _follow(opt: outpace.DistributedOptimizer, steps: int, others: str) -> None:
    """What the other ranks do meanwhile."""
    if others == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    pause_s, count = {"slow": (0.05, 5), "balanced": (0.002, steps)}.get(others, (0, 0))
    for _ in range(count):
        time.sleep(pause_s)
        opt.step()
