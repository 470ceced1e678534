"""What a rank that is stopped for three seconds costs the others, at every named point.

Compute is a sleep (emulated accelerator time). Rank 0 measures its own step rate before and while another rank is
really stopped (state T); with waiting avoided, the rate while it is stopped equals the rate before.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

import outpace
from bench.run import Run
from outpace.engines.arena.kernel import POINTS

RANKS, COMPUTE_S, STOP_S, AT_ROUND = 4, 0.020, 3.0, 50
QUICK_STOP_S, QUICK_AT_ROUND = 0.5, 10
STRATEGIES = ("eager-solo", "eager-majority")
OTHER_POINTS = ("opening-attempt", "writing-snapshot")  #: only while another rank lags; their tests have two victims


def measure(run: Run) -> dict[str, Any]:
    """Each point once."""
    stop_s, at_round = (QUICK_STOP_S, QUICK_AT_ROUND) if run.quick else (STOP_S, AT_ROUND)
    points = [point for point in POINTS if point not in OTHER_POINTS][: 1 if run.quick else None]
    rows = []
    with run.until_ctrl_c():
        for strategy in STRATEGIES:
            for point in points:
                run.say(f"stops: {strategy}, {point}")
                before, during = outpace.spawn(_train, RANKS, (strategy, point, at_round, stop_s))[0]
                rows.append({"strategy": strategy, "point": point, "before_per_s": before, "stopped_per_s": during})
    return {"ranks": RANKS, "compute_ms": COMPUTE_S * 1e3, "stop_s": stop_s, "rows": rows}


def _train(strategy: str, point: str, at_round: int, stop_s: float) -> tuple[float, float]:
    """Steps per second of rank 0 before and during the stop; zeros if it did not happen."""
    rank, victim = int(os.environ["RANK"]), RANKS - 1
    if rank == victim:
        os.environ["OUTPACE_FAULT"] = f"stop:{point}:{at_round}"
    weight = torch.nn.Parameter(torch.zeros(200_000))
    opt = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.01), strategy)
    weight.grad = torch.ones_like(weight)
    before: list[float] = []
    during: list[float] = []
    steps = int((at_round * COMPUTE_S * 2 + stop_s) / COMPUTE_S) + 50
    for _ in range(steps):
        began = time.perf_counter()
        time.sleep(COMPUTE_S)
        opt.step()
        if rank == 0:
            _note(opt, victim, time.perf_counter() - began, before, during, stop_s)
    opt.finish()
    if rank > 0 or not during:
        return 0.0, 0.0
    return len(before) / sum(before), len(during) / sum(during)


def _note(
    opt: outpace.DistributedOptimizer,
    victim: int,
    seconds: float,
    before: list[float],
    during: list[float],
    stop_s: float,
) -> None:
    """Files a step under before or during, and ends the stop when its time is over."""
    if sum(during) >= stop_s:
        return
    pid = opt._engine.log.life.holder(victim)
    state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] if pid else "?"
    (during if state == "T" else before).append(seconds)
    if sum(during) >= stop_s:
        os.kill(pid, signal.SIGCONT)
