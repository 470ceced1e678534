"""Ranks that train on what they draw from one pool: weights count how often each sample was in a gradient.

Run as a script under `outpace run` (`drawing.py DIRECTORY SAMPLES KILLS`), all ranks but the first end so many of their
lives themselves, at random instants.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import outpace
from outpace.data import SharedBatchSampler, SharedSampler
from tests.support.family import Board
from tests.support.processes import until
from tests.support.ranks import TIMEOUT_S, my_rank

STRATEGY = "eager:quorum=majority,normalise=sum,repair=none,max_staleness=10000"  # nothing is dropped or weighed
ALONE = "eager:quorum=solo,normalise=sum,repair=none,max_staleness=100000"
BATCH = 4


class Counter:
    """Weights [epoch, sample] that grow by one for each time that sample was applied in that epoch."""

    def __init__(self, epochs: int, samples: int, strategy: str = STRATEGY, timeout_s: float = TIMEOUT_S) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(epochs, samples))
        inner = torch.optim.SGD([self.weight], lr=1.0)
        self.opt = outpace.DistributedOptimizer(inner, strategy, timeout_s=timeout_s)

    def add(self, epoch: int, samples: torch.Tensor) -> None:
        if self.weight.grad is None:
            self.weight.grad = torch.zeros_like(self.weight)
        self.weight.grad[epoch, samples] -= 1.0

    def step(self) -> None:
        self.opt.step()
        self.opt.zero_grad()

    def times(self) -> list[int]:
        """How often samples were applied: [1] if each was once in each epoch."""
        return sorted({int(count) for count in self.weight.detach().flatten()})


def loader_of(samples: int, mode: str, workers: int, **options) -> tuple[DataLoader, SharedSampler]:
    data = TensorDataset(torch.arange(samples))
    more = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    if mode == "samples":
        sampler = SharedSampler(data, BATCH, **options)
        return DataLoader(data, batch_size=BATCH, sampler=sampler, **more), sampler
    sampler = SharedBatchSampler(data, BATCH, **options)
    return DataLoader(data, batch_sampler=sampler, **more), sampler


def draw_all(samples: int, epochs: int, mode: str, workers: int, accumulated: int = 1) -> dict:
    """An ordinary loop over a few epochs."""
    counter = Counter(epochs, samples)
    loader, sampler = loader_of(samples, mode, workers, batches_per_step=accumulated)
    drawn = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch, (x,) in enumerate(loader, 1):
            drawn.append((epoch, x.tolist()))
            counter.add(epoch, x)
            if batch % accumulated == 0:
                counter.step()
        if counter.weight.grad is not None:
            counter.step()
    counter.opt.finish()
    return {"times": counter.times(), "drawn": drawn}


def draw_other_data(samples: list[int], seeds: list[int]) -> str:
    """What a rank is told whose data are not those of the others. Rank 1 draws second."""
    counter, rank = Counter(1, 100), my_rank()
    loader, _ = loader_of(samples[rank], "batches", 0, seed=seeds[rank])
    if rank:
        until(lambda: _has_drawn(counter, 0))
    try:
        for (x,) in loader:
            counter.add(0, x)
            counter.step()
    except outpace.OutpaceError as error:
        return str(error)
    finally:
        counter.opt.finish()
    return ""


def _has_drawn(counter: Counter, rank: int) -> bool:
    counter.opt._engine.look()
    return rank in counter.opt._engine.ledger.pool.hands


def resume(samples: int, state: dict | None, batches: int) -> dict:
    """Goes on from a checkpoint, makes so many steps on each rank, and leaves another one."""
    counter = Counter(1, samples)
    loader, sampler = loader_of(samples, "batches", 1)
    if state is not None:
        sampler.load_state_dict(state)
    drawn = []
    for number, (x,) in enumerate(loader, 1):
        drawn += x.tolist()
        counter.add(0, x)
        counter.step()
        if number == batches:
            break
    counter.opt.synchronize()
    found = {"drawn": drawn, "state": sampler.state_dict()}
    counter.opt.finish()
    return found


def begin_late(samples: int, epochs: int) -> dict:
    """Rank 1 begins to loop when the others are in the last epoch."""
    counter = Counter(epochs, samples, ALONE)
    loader, sampler = loader_of(samples, "batches", workers=0)
    if my_rank():
        until(lambda: sampler.epoch == epochs - 1)
    begun = range(sampler.epoch, epochs)
    for epoch in begun:
        sampler.set_epoch(epoch)
        for (x,) in loader:
            counter.add(epoch, x)
            counter.step()
    counter.opt.finish()
    return {"times": counter.times(), "begun": list(begun)}


def draw_until_ended(
    samples: int,
    path: str,
    timeout_s: float,
    workers: int = 0,
    before_step: Callable[[outpace.DistributedOptimizer], None] = lambda optimizer: None,
) -> dict:
    """Epoch after epoch until the board says that it is enough. A rank that was started again begins with the one that
    the others are in. What is left of an epoch when a rank dies may be trained in the next: counted over all."""
    rank, board = my_rank(), Board(path)
    counter = Counter(1, samples, ALONE, timeout_s)
    loader, sampler = loader_of(samples, "batches", workers)
    board.enter(rank)
    begun = 0
    for epoch in itertools.count(sampler.epoch):
        if board.is_ended:
            break
        sampler.set_epoch(epoch)
        begun = epoch + 1
        for (x,) in loader:
            time.sleep(0.005)  # computing
            counter.add(0, x)
            before_step(counter.opt)
            counter.step()
            board.advance(rank)
    counter.opt.finish()
    return {"times": counter.times(), "epochs": begun}


def draw_and_die(directory: Path, samples: int, kills: int) -> None:
    """Rank 0 lives on, and computes all the while: who is started again takes up its weights."""
    life, rank = int(os.environ["OUTPACE_LIFE"]), my_rank()
    draw = random.Random(f"{rank}/{life}")
    workers, last = draw.choice((0, 0, 1)), draw.randrange(1, 12)
    point = draw.choice(("", "before-append", "after-append", "before-wake", "applying", "depositing"))
    made = itertools.count()

    def die(optimizer: outpace.DistributedOptimizer) -> None:
        if next(made) != last:
            return
        if point:
            optimizer._engine.log.faults._armed = (point, 0, signal.SIGKILL)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    (directory / f"{rank}.{life}.started").write_text(json.dumps({"pid": os.getpid()}))
    may_die = {"before_step": die} if rank > 0 and life <= kills else {}
    report = draw_until_ended(samples, str(directory / "board"), TIMEOUT_S, workers, **may_die)
    (directory / f"{rank}.{life}.report").write_text(json.dumps(report))


if __name__ == "__main__":
    draw_and_die(Path(sys.argv[1]), *map(int, sys.argv[2:]))
