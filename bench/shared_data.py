"""How long an epoch takes when one rank is always slower, as a ratio to the ideal: all ranks busy to the end.

Computing is emulated by sleeping, so that it does not compete for this machine's cores. Beside it, what a draw costs.

    python -m bench.shared_data [--base-ms 200] [--batches 100] [--shared-only] [--strategies ...]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from statistics import fmean, median

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import outpace
from outpace.data import SharedBatchSampler

STRATEGIES = ("allreduce", "eager-majority")
CASES = ((4, 2.0), (4, 4.0), (8, 2.0), (8, 4.0))  #: ranks, and how much longer the last one computes
BATCH, DRAWS = 32, 5000


def epoch(strategy: str, shared: bool, batches: int, step_s: Sequence[float]) -> tuple[float, int]:
    """Seconds from when all have begun until this rank has nothing left to do, and its steps."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    weight = torch.nn.Parameter(torch.zeros(1000))
    optimizer = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), strategy)
    data = TensorDataset(torch.arange(batches * world * BATCH))
    if shared:
        loader = DataLoader(data, batch_sampler=SharedBatchSampler(data, BATCH))
    else:
        loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, world, rank))
    optimizer.synchronize()
    began, steps = time.monotonic(), 0
    for _ in loader:
        time.sleep(step_s[rank])
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        steps += 1
    optimizer.finish()
    return time.monotonic() - began, steps


def draw_cost() -> dict[str, float]:
    """Microseconds of a draw of one batch of 32, with other ranks drawing at the same time; and of this rank's own
    computing in it, which others' processes on the machine do not lengthen as much."""
    weight = torch.nn.Parameter(torch.zeros(1))
    with outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), "eager-solo") as optimizer:
        draws, took = iter(SharedBatchSampler(DRAWS * BATCH * len(optimizer.stats.ranks), BATCH)), []
        next(draws)
        optimizer.synchronize()
        cpu_ns = time.thread_time_ns()
        for _ in range(DRAWS // 2):
            began = time.perf_counter_ns()
            next(draws)
            took.append((time.perf_counter_ns() - began) / 1e3)
        cpu_us = (time.thread_time_ns() - cpu_ns) / 1e3 / len(took)
        optimizer.synchronize()
        return {"mean": fmean(took), "median": median(took), "processor time": cpu_us}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-ms", type=float, default=200.0)
    parser.add_argument("--batches", type=int, default=100, help="of a rank, in the mean")
    parser.add_argument("--shared-only", action="store_true", help="without DistributedSampler beside it")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    arguments = parser.parse_args()
    for ranks in (1, 2, 4):
        found = outpace.spawn(draw_cost, ranks)
        costs = ", ".join(f"{kind} {max(rank[kind] for rank in found):.1f} us" for kind in found[0])
        print(f"a draw, {ranks} ranks that draw at once: {costs}", flush=True)
    base_s = arguments.base_ms / 1e3
    print("| ranks | slower | strategy | data | epoch / ideal | steps of the slow rank |\n" + "| --- " * 6 + "|")
    for ranks, factor in CASES:
        step_s = [base_s] * (ranks - 1) + [factor * base_s]
        ideal_s = arguments.batches * ranks / sum(1 / each for each in step_s)
        for strategy in arguments.strategies:
            for shared in (True,) if arguments.shared_only else (False, True):
                found = outpace.spawn(epoch, ranks, (strategy, shared, arguments.batches, step_s))
                ratio = max(seconds for seconds, _ in found) / ideal_s
                name = "SharedBatchSampler" if shared else "DistributedSampler"
                cells = (ranks, f"{factor:g}x", strategy, name, f"{ratio:.2f}", found[-1][1])
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
