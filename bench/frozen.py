"""A step that trains little of a large model, as LoRA does: with `model=` given and without.

With it, ranks begin with equal frozen weights, and a rank that is started again gets them from a snapshot. Compute is a
sleep (emulated accelerator time). Where one rank is slow in some steps, it lags, and snapshots are written for it.
"""

from __future__ import annotations

import time
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import AdamW

import outpace
from bench.bare import join_gloo
from bench.figures import Samples, mean, ratio, spread
from bench.run import Run

RANKS, FROZEN, TRAINED, STEPS = 4, 50_000_000, 25_000, 200
QUICK_FROZEN, QUICK_STEPS = 1_000_000, 40
COMPUTE_S, LATE_S, LATE_EVERY, LATE_FOR = 0.005, 0.05, 40, 8
STRATEGIES = ("allreduce", "eager-majority", "eager-solo", "wagma")


class Adapted(torch.nn.Module):
    """A frozen weight and a small trained one."""

    def __init__(self, frozen: int) -> None:
        super().__init__()
        self.base = torch.nn.Parameter(torch.ones(frozen), requires_grad=False)
        self.adapter = torch.nn.Parameter(torch.zeros(TRAINED))


def measure(run: Run) -> dict[str, Any]:
    """Each strategy with `model=` and without, one after the other."""
    samples = Samples()
    frozen, steps = (QUICK_FROZEN, QUICK_STEPS) if run.quick else (FROZEN, STEPS)
    with run.until_ctrl_c():
        for _ in run.repeats("frozen"):
            for strategy in STRATEGIES:
                for is_late in (False, True):
                    run.say(f"frozen: {strategy}{', a rank late' if is_late else ''}")
                    found = outpace.spawn(_both, RANKS, (strategy, frozen, steps, is_late))
                    samples.add((strategy, is_late), mean(found[:-1]))
    return {
        "ranks": RANKS,
        "frozen_mb": frozen * 4e-6,
        "trained_mb": TRAINED * 4e-6,
        "rows": [_row(strategy, is_late, found) for (strategy, is_late), found in samples.items()],
    }


def _both(strategy: str, frozen: int, steps: int, is_late: bool) -> dict[str, float]:
    """In each rank: seconds of a step."""
    join_gloo()
    return {name: _step_s(strategy, Adapted(frozen), steps, is_late, name == "with") for name in ("without", "with")}


def _step_s(strategy: str, model: Adapted, steps: int, is_late: bool, is_given: bool) -> float:
    inner = AdamW([model.adapter], lr=1e-6)
    optimizer = outpace.DistributedOptimizer(inner, strategy, model if is_given else None)
    model.adapter.grad = torch.ones_like(model.adapter)
    dist.barrier()
    is_slow = is_late and dist.get_rank() == RANKS - 1
    seconds = []
    for step in range(steps):
        began = time.perf_counter()
        time.sleep(LATE_S if is_slow and step % LATE_EVERY < LATE_FOR else COMPUTE_S)
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    optimizer.finish()
    dist.barrier()
    return fmean(seconds)


def _row(strategy: str, is_late: bool, found: dict[str, list[float]]) -> dict[str, Any]:
    seconds = {name: spread(values) for name, values in found.items()}
    return {"strategy": strategy, "late": is_late, **seconds, "ratio": ratio(found["with"], found["without"])}
