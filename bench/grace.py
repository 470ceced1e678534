"""How many contributions grace keeps from becoming stale, with as many balanced ranks as there are cores.

Every rank computes the same: a sleep (emulated accelerator time) and a small real gradient. Without grace, whoever
comes a moment after the first is late, and stays out of step; with it, most rounds have everybody.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch

import outpace
from bench.figures import Samples, spread
from bench.run import Run

STRATEGIES = ("eager-solo:grace=0", "eager-solo")
COMPUTE_S, STEPS, QUICK_STEPS = 0.010, 300, 50
MOST_REPEATS = 3


def measure(run: Run) -> dict[str, Any]:
    """Without and with grace in turn."""
    samples = Samples()
    ranks, steps = max(2, os.cpu_count() or 2), QUICK_STEPS if run.quick else STEPS
    with run.until_ctrl_c():
        for _ in run.repeats("grace", MOST_REPEATS):
            for strategy in STRATEGIES:
                samples.add(strategy, outpace.spawn(_train, ranks, (strategy, steps))[0])
    rows = [
        {"strategy": strategy, **{name: spread(values) for name, values in found.items()}}
        for strategy, found in samples.items()
    ]
    repeats = min(run.repeat, MOST_REPEATS)
    return {"ranks": ranks, "steps": steps, "repeats": repeats, "compute_ms": COMPUTE_S * 1e3, "rows": rows}


def _train(strategy: str, steps: int) -> dict[str, float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    opt = outpace.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), strategy, model)
    began = time.perf_counter()
    for _ in range(steps):
        opt.zero_grad()
        model(torch.randn(32, 64)).pow(2).mean().backward()
        time.sleep(COMPUTE_S)
        opt.step()
    opt.finish()
    seconds = time.perf_counter() - began
    ranks = opt.stats.ranks
    late = sum(r.carried + r.dropped for r in ranks)
    given = late + sum(r.on_time for r in ranks)
    return {"late_share": late / given, "rounds": opt.stats.round, "seconds": seconds}
