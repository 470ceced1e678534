"""Whether `outpace advise` says the right thing, and whether what it promises is seen: three runs are recorded, advised
on, and run again as it says. Real processes; computing is emulated by sleeping, so that it needs no cores.

    python -m bench.advice [--ranks 4] [--steps 150] [--base-ms 50]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DistributedSampler

import outpace
from bench.priority import come_first
from outpace.data import LengthBalancedBatches, SharedBatchSampler
from outpace.observe.reader import read_trace
from outpace.simulation.advice import STAY, advise
from outpace.simulation.scenario import BALANCED, SPLIT

BATCH, SLOW = 8, 2.0
CASES = ("balanced ranks", "unequal lengths", "one slow rank")


def lengths_of(case: str, samples: int) -> np.ndarray:
    """Tokens of each sample."""
    if case != "unequal lengths":
        return np.full(samples, 100.0)
    return np.random.default_rng(0).lognormal(4.6, 0.9, samples).clip(10, 1000)


def batches(data: str, lengths: np.ndarray) -> Iterator[list[int]]:
    """What this rank computes."""
    if data == BALANCED:
        yield from LengthBalancedBatches(lengths, BATCH, padding=None, data=SPLIT)
    elif data == SPLIT:
        own = list(DistributedSampler(lengths, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])))  # type: ignore[arg-type]
        yield from (own[at : at + BATCH] for at in range(0, len(own), BATCH))
    else:
        yield from SharedBatchSampler(len(lengths), BATCH)


def train(case: str, strategy: str, data: str, steps: int, base_s: float, directory: str) -> float:
    """Seconds from when all have begun until all are done."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    weight = torch.nn.Parameter(torch.zeros(1000))
    optimizer = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), strategy, log_dir=directory or None)
    lengths = lengths_of(case, steps * world * BATCH)
    usual = BATCH * lengths.mean()
    speed = SLOW if case == "one slow rank" and rank == world - 1 else 1.0
    come_first()
    optimizer.synchronize()
    began = time.monotonic()
    for batch in batches(data, lengths):
        tokens = float(lengths[batch].sum())
        time.sleep(base_s * speed * tokens / usual)
        weight.grad = torch.ones_like(weight)
        optimizer.step(samples=tokens)
    optimizer.finish()
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150, help="of each rank, where data are split")
    parser.add_argument("--base-ms", type=float, default=50.0)
    given = parser.parse_args()
    print("| recording | advised | promised | measured |\n" + "| --- " * 4 + "|")
    for case in CASES:
        with tempfile.TemporaryDirectory() as kept:
            directory = str(Path(kept) / "recording")
            how = (given.steps, given.base_ms / 1e3)
            waited_s = max(outpace.spawn(train, given.ranks, (case, "allreduce", SPLIT, *how, directory)))
            advice = advise(read_trace(directory))
        stays = advice.first == STAY
        strategy = "allreduce" if stays or advice.data == BALANCED else advice.first.rpartition("with ")[2]
        took_s = max(outpace.spawn(train, given.ranks, (case, strategy, advice.data, *how, "")))
        print(f"| {case} | {advice.first} | {advice.gain:.2f}x | {waited_s / took_s:.2f}x |", flush=True)


if __name__ == "__main__":
    main()
