"""How much shared memory exists as lateness comes and goes: nobody late, a burst of it, and a rank that is stopped.

Compute is a sleep (emulated accelerator time). Phases are times on the clock that all ranks share; rank 0 looks at the
arena's pages after each of its steps. While a rank is stopped it is in state T for the whole phase, a minute.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist

import outpace
from bench.bare import join_gloo
from bench.run import Run

RANKS, PARAMETERS, STRATEGY = 8, 2_500_000, "eager-majority"
PHASES_S = {"nobody late": 10.0, "burst": 5.0, "after the burst": 10.0, "stopped": 60.0, "after the stop": 10.0}
QUICK_RANKS, QUICK_SHARE = 4, 0.02
COMPUTE_S, LATE_S = 0.03, 0.2  #: of a step; of the ranks that are late in the burst, which are half of all
MOMENTUM = 0.9


def measure(run: Run) -> dict[str, Any]:
    """Once: what a phase touches hardly varies."""
    ranks, share = (QUICK_RANKS, QUICK_SHARE) if run.quick else (RANKS, 1.0)
    found: dict[str, list[float]] = {}
    with run.until_ctrl_c():
        run.say(f"touched: {sum(PHASES_S.values()) * share:.0f} s")
        found = outpace.spawn(_watched, ranks, (share,))[0]
    return {
        "ranks": ranks,
        "vector_mb": PARAMETERS * 4e-6,
        "strategy": STRATEGY,
        "rows": [
            {"phase": phase, "seconds": PHASES_S[phase] * share, "most": max(seen), "at_its_end": _last(seen)}
            for phase, seen in found.items()
            if seen
        ],
    }


def _last(seen: list[float]) -> float:
    """The mean of the last quarter."""
    return fmean(seen[-max(1, len(seen) // 4) :])


def _watched(share: float) -> dict[str, list[float]]:
    """In each rank. Of the phases, the vectors that exist after each step."""
    join_gloo()
    weight = torch.nn.Parameter(torch.zeros(PARAMETERS))
    inner = torch.optim.SGD([weight], lr=1e-6, momentum=MOMENTUM)
    optimizer = outpace.DistributedOptimizer(inner, STRATEGY)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    weight.grad = torch.ones(PARAMETERS)
    arena = optimizer._engine.memory.files.arena  # type: ignore[attr-defined]
    found: dict[str, list[float]] = {}
    dist.barrier()
    end_s = time.monotonic()
    for phase, seconds in PHASES_S.items():
        end_s += seconds * share
        seen = found[phase] = []
        if phase == "stopped" and rank == ranks - 1:
            _stop(end_s - time.monotonic())
        is_late = phase == "burst" and rank >= ranks // 2
        while time.monotonic() < end_s:
            time.sleep(LATE_S if is_late else COMPUTE_S)
            optimizer.step()
            seen.append(os.fstat(arena).st_blocks * 512 / (PARAMETERS * 4))
    optimizer.finish()
    dist.barrier()
    return found


def _stop(seconds: float) -> None:
    """This process, until another one wakes it up."""
    with subprocess.Popen(["sh", "-c", f"sleep {max(0.0, seconds)}; kill -CONT {os.getpid()}"]):
        os.kill(os.getpid(), signal.SIGSTOP)
