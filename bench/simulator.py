"""How fast the simulator is, and how it scales: timing-only runs, each in a process of its own, on one core.

Processor time, because what else this machine does is not the simulator's.
"""

from __future__ import annotations

import math
import resource
import time
from typing import Any

import outpace
from bench.run import Run
from outpace.simulation import SHARED, Scenario, simulate_timing

IMBALANCE = "lognormal:mean_ms=20,sd_ms=30"
LARGEST = ("wagma", 4096, 1000)
STRATEGIES = ("allreduce", "eager-majority")
USUAL = (1024, 1000)
WORLDS = (128, 256, 512, 1024, 4096)
STEPS_OF_ALL = 262_144  #: ranks x steps of each world
QUICK_PART, QUICK_WORLDS = 100, (128, 512)


def measure(run: Run) -> dict[str, Any]:
    """The largest run, the usual one, and the cost of a step in larger and larger worlds."""
    part = QUICK_PART if run.quick else 1
    large: list[dict[str, Any]] = []
    scale: list[dict[str, Any]] = []
    with run.until_ctrl_c():
        for strategy, ranks, steps in (*((name, *USUAL) for name in STRATEGIES), LARGEST):
            large.append(_measured(run, strategy, ranks, steps // part))
        for ranks in QUICK_WORLDS if run.quick else WORLDS:
            for strategy in STRATEGIES:
                found = _measured(run, strategy, ranks, STEPS_OF_ALL // part // ranks)
                scale.append({**found, "per_log": found["us_per_step"] / math.log2(ranks)})
    return {"imbalance": IMBALANCE, "large": large, "strategies": STRATEGIES, "scale": scale}


def _measured(run: Run, strategy: str, ranks: int, steps: int) -> dict[str, Any]:
    run.say(f"simulator: {strategy}, {ranks:,} ranks x {steps:,} steps")
    (found,) = outpace.spawn(_simulated, 1, (strategy, ranks, steps), {"OMP_NUM_THREADS": "1"})
    return {"strategy": strategy, "ranks": ranks, "steps": steps, **found}


def _simulated(strategy: str, ranks: int, steps: int) -> dict[str, float]:
    events = 0

    def count(event: object, outcome: object) -> None:
        nonlocal events
        events += 1

    scenario = Scenario(ranks=ranks, steps=steps, imbalance=IMBALANCE, data=SHARED)
    before, began = _peak_bytes(), time.process_time()
    simulate_timing(strategy, scenario, watch=count)
    seconds = time.process_time() - began
    return {
        "seconds": seconds,
        "events_per_s": events / seconds,
        "steps_per_s": ranks * steps / seconds,
        "us_per_step": seconds / (ranks * steps) * 1e6,
        "peak_bytes": _peak_bytes(),
        "bytes_per_rank": (_peak_bytes() - before) / ranks,
    }


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
