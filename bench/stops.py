"""What a rank that is stopped for three seconds costs the others, at every named point.

    python bench/stops.py [--ranks 4] [--stop-s 3] [--compute-ms 20]

Compute is a sleep (emulated accelerator time). Rank 0 measures its own step rate before and while another rank is
really stopped (state T); with waiting avoided, the rate while it is stopped equals the rate before.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

import torch

import outpace
from outpace.engines.local.faults import POINTS

AT_ROUND = 50


def train(strategy: str, point: str, compute_s: float, stop_s: float, victim: int) -> tuple[float, float]:
    """Steps per second of rank 0 before and during the stop."""
    rank = int(os.environ["RANK"])
    if rank == victim:
        os.environ["OUTPACE_FAULT"] = f"stop:{point}:{AT_ROUND}"
    weight = torch.nn.Parameter(torch.zeros(200_000))
    opt = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.01), strategy)
    weight.grad = torch.ones_like(weight)
    before: list[float] = []
    during: list[float] = []
    steps = int((AT_ROUND * compute_s * 2 + stop_s) / compute_s) + 50
    for _ in range(steps):
        began = time.perf_counter()
        time.sleep(compute_s)
        opt.step()
        if rank == 0:
            note(opt, victim, time.perf_counter() - began, before, during, stop_s)
    opt.finish()
    if rank > 0 or not during:
        return 0.0, 0.0
    return len(before) / sum(before), len(during) / sum(during)


def note(opt, victim: int, seconds: float, before: list[float], during: list[float], stop_s: float) -> None:
    """Files a step under before or during, and ends the stop when its time is over."""
    if sum(during) >= stop_s:
        return
    pid = opt._engine._life.holder(victim)
    state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] if pid else "?"
    (during if state == "T" else before).append(seconds)
    if sum(during) >= stop_s:
        os.kill(pid, signal.SIGCONT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--stop-s", type=float, default=3.0)
    parser.add_argument("--compute-ms", type=float, default=20.0)
    args = parser.parse_args()
    print(f"{args.ranks} ranks, {args.compute_ms:g} ms of emulated compute, one rank stopped for {args.stop_s:g} s")
    print(f"  {'strategy':15} {'stopped while':17} steps/s before   while stopped   kept")
    for strategy in ("eager-solo", "eager-majority"):
        for point in POINTS:
            if point == "opening-attempt":
                continue  # happens only while another rank is stopped; its test has two victims
            given = (strategy, point, args.compute_ms / 1e3, args.stop_s, args.ranks - 1)
            before, during = outpace.spawn(train, args.ranks, given)[0]
            kept = f"{during / before:6.1%}" if before else "the fault did not happen"
            print(f"  {strategy:15} {point:17} {before:14.1f} {during:15.1f}   {kept}", flush=True)


if __name__ == "__main__":
    main()
