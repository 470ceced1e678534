"""How long an epoch takes when one rank is always slower, as a ratio to the ideal: all ranks busy to the end.

Computing is emulated by sleeping, so that it does not compete for this machine's cores. An epoch lasts from when all
ranks have met until all have met again, as in a program that validates after each; the first is shown by itself, since
it has the start in it. Beside it, what a draw costs.

    python -m bench.shared_data [--simulated] [--base-ms 100] [--batches 100] [--epochs 3] [--workers 0] [--data shared]
    python -m bench.shared_data --data        what a draw costs, alone

With `--simulated` the same loop runs in simulated time, in which nothing but computing and waiting takes any.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import outpace
from bench.priority import come_first
from outpace.data import SharedBatchSampler

STRATEGIES = ("allreduce", "eager-majority")
CASES = ((4, 2.0), (4, 4.0), (8, 2.0), (8, 4.0))  #: ranks, and how much longer the last one computes
DATA = {"split": "DistributedSampler", "shared": "SharedBatchSampler"}
BATCH, DRAWS = 32, 5000


def epochs(
    strategy: str, shared: bool, batches: int, step_s: Sequence[float], count: int, workers: int, is_simulated: bool
) -> tuple[list[float], list[int]]:
    """Seconds of each epoch, and this rank's steps in it."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    weight = torch.nn.Parameter(torch.zeros(1000))
    optimizer = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), strategy)
    data = TensorDataset(torch.arange(batches * world * BATCH))
    sampler = SharedBatchSampler(data, BATCH) if shared else None
    own = DistributedSampler(data, world, rank)
    how = {"batch_sampler": sampler} if sampler is not None else {"batch_size": BATCH, "sampler": own}
    loader = DataLoader(data, **how, num_workers=workers, persistent_workers=workers > 0)  # type: ignore[arg-type]
    come_first()
    clock = optimizer._engine.now_s if is_simulated else time.monotonic
    took, steps = [], [0] * count
    for epoch in range(count):
        (sampler or own).set_epoch(epoch)
        optimizer.synchronize()
        began = clock()
        for _ in loader:
            time.sleep(0 if is_simulated else step_s[rank])
            weight.grad = torch.ones_like(weight)
            optimizer.step()
            steps[epoch] += 1
        optimizer.synchronize()
        took.append(clock() - began)
    optimizer.finish()
    return took, steps


def draw_cost() -> dict[str, float]:
    """Microseconds of a draw of one batch of 32, with other ranks drawing at the same time; and of this rank's own
    computing in it, which others' processes on the machine do not lengthen as much."""
    weight = torch.nn.Parameter(torch.zeros(1))
    with outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), "eager-solo") as optimizer:
        draws, took = iter(SharedBatchSampler(DRAWS * BATCH * len(optimizer.stats.ranks), BATCH)), []
        next(draws)
        come_first()
        optimizer.synchronize()
        cpu_ns = time.thread_time_ns()
        for _ in range(DRAWS // 2):
            began = time.perf_counter_ns()
            next(draws)
            took.append((time.perf_counter_ns() - began) / 1e3)
        cpu_us = (time.thread_time_ns() - cpu_ns) / 1e3 / len(took)
        optimizer.synchronize()
        return {"mean": fmean(took), "median": median(took), "processor time": cpu_us}


def _run(ranks: int, factor: float, arguments: argparse.Namespace, given: tuple[Any, ...]) -> Sequence[Any]:
    if not arguments.simulated:
        return outpace.spawn(epochs, ranks, given)
    slow = OwnPace(factor)
    return outpace.simulate(epochs, ranks, given, compute_ms=arguments.base_ms, imbalance=slow, network="zero").results


@dataclass(frozen=True)
class OwnPace:
    """The last rank is slower, as in real time."""

    factor: float

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        return base_s * (self.factor if rank == world - 1 else 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-ms", type=float, default=100.0)
    parser.add_argument("--batches", type=int, default=100, help="of a rank, in the mean")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--simulated", action="store_true", help="in simulated time: what waiting alone costs")
    parser.add_argument("--workers", type=int, default=0, help="of each rank's loader")
    parser.add_argument("--data", nargs="*", choices=DATA, default=list(DATA), help="split: DistributedSampler")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    arguments = parser.parse_args()
    for ranks in () if arguments.simulated else (1, 2, 4):
        found = outpace.spawn(draw_cost, ranks)
        costs = ", ".join(f"{kind} {max(rank[kind] for rank in found):.1f} us" for kind in found[0])
        print(f"a draw, {ranks} ranks that draw at once: {costs}", flush=True)
    base_s = arguments.base_ms / 1e3
    heads = ("ranks", "slower", "strategy", "data", "first epoch / ideal", "later ones", "steps of the slow rank")
    print("| " + " | ".join(heads) + " |\n" + "| --- " * len(heads) + "|")
    for ranks, factor in CASES:
        step_s = [base_s] * (ranks - 1) + [factor * base_s]
        ideal_s = arguments.batches * ranks / sum(1 / each for each in step_s)
        for strategy in arguments.strategies:
            for data in arguments.data:
                how = (arguments.epochs, arguments.workers, arguments.simulated)
                found = _run(ranks, factor, arguments, (strategy, data == "shared", arguments.batches, step_s, *how))
                first, *later = (max(seconds) / ideal_s for seconds in zip(*(took for took, _ in found), strict=True))
                others = f"{fmean(later):.3f}" if later else "-"
                cells = (ranks, f"{factor:g}x", strategy, DATA[data], f"{first:.3f}", others, found[-1][1])
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
