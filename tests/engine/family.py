"""What the ranks of the tests of the whole family do. Runs in processes of its own."""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from ranks import TIMEOUT_S, my_rank

import outpace

MICROBATCHES = 4
VICTIMS_STEPS = 10  # steps of a rank before it is stopped or killed
BETWEEN_STEPS = "between steps"


@dataclass
class Seen:
    """One rank's view of a run."""

    rank: int
    before: float  # loss of the weights all begin with, on data no rank trains on
    after: float  # of those all end with
    met: str  # weights and buffers after synchronize()
    final: str  # after finish()
    is_finite: bool
    steps: int
    stats: outpace.observe.stats.Stats


def model_of(rank: int) -> torch.nn.Module:
    torch.manual_seed(rank)  # different on every rank: rank 0's weights must win
    return torch.nn.Sequential(
        torch.nn.Linear(12, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    )


def wrapped(model: torch.nn.Module, strategy: str, momentum: float = 0.9) -> outpace.DistributedOptimizer:
    inner = torch.optim.SGD(model.parameters(), lr=0.02, momentum=momentum)
    return outpace.DistributedOptimizer(inner, strategy=strategy, model=model, timeout_s=TIMEOUT_S)


def batches(count: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(8, 12, generator=generator) for _ in range(count)]
    return [(x, x[:, :4].sum(1, keepdim=True) / 2) for x in inputs]


def loss_of(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


@torch.no_grad()
def held_out(model: torch.nn.Module) -> float:
    """Loss on data no rank trains on. Leaves the buffers alone."""
    model.eval()
    loss = sum(float(loss_of(model, batch)) for batch in batches(16, seed=-1)) / 16
    model.train()
    return loss


def digest(model: torch.nn.Module) -> str:
    """Of the bytes of all weights and buffers."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def is_finite(model: torch.nn.Module) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())


def in_rounds(opt: outpace.DistributedOptimizer, model: torch.nn.Module, data: list, jitter: Iterator[float]) -> None:
    """Rounds of micro-batches."""
    for batches_of_round in opt.rounds(data, microbatches=MICROBATCHES):
        for batch in batches_of_round:
            loss = loss_of(model, batch)
            loss.backward()
            time.sleep(next(jitter))
        opt.step(loss=loss)


def in_steps(opt: outpace.DistributedOptimizer, model: torch.nn.Module, data: list, jitter: Iterator[float]) -> None:
    """A plain loop."""
    for batch in data:
        opt.zero_grad()
        loss_of(model, batch).backward()
        time.sleep(next(jitter))
        opt.step()


def delays(delay_s: float) -> Iterator[float]:
    draw = random.Random(my_rank())
    while True:
        yield draw.random() * delay_s


def train(strategy: str, steps: int, is_uneven: bool = False, plain: bool = False) -> Seen:
    """Half the data, a synchronisation, the other half. Uneven: the higher a rank, the less it has in each half."""
    rank = my_rank()
    model = model_of(rank)
    opt, jitter = wrapped(model, strategy), delays(0.002)
    before = held_out(model)
    loop, parts = (in_steps, 1) if plain else (in_rounds, MICROBATCHES)
    half = max(1, steps // 2 - 2 * rank) if is_uneven else steps // 2
    loop(opt, model, batches(half * parts, 1000 + rank), jitter)
    opt.synchronize()
    met = digest(model)
    loop(opt, model, batches(half * parts, 2000 + rank), jitter)
    opt.finish()
    return Seen(rank, before, held_out(model), met, digest(model), is_finite(model), opt.stats.steps, opt.stats)


class Board:
    """A page that the ranks and the test share: how far each rank is, its process, and whether it is time to end."""

    def __init__(self, path: str | Path) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(file, mmap.PAGESIZE)
        self._numbers = memoryview(mmap.mmap(file, mmap.PAGESIZE)).cast("q")
        os.close(file)

    def enter(self, rank: int) -> None:
        """This process is that rank."""
        self._numbers[2 + 2 * rank] = os.getpid()

    def advance(self, rank: int) -> None:
        """That rank has made another step."""
        self._numbers[1 + 2 * rank] += 1

    def steps(self, rank: int) -> int:
        """Of that rank so far."""
        return self._numbers[1 + 2 * rank]

    def process(self, rank: int) -> int:
        """Of that rank, 0 before it has entered."""
        return self._numbers[2 + 2 * rank]

    def end(self) -> None:
        """Tells all ranks that it is enough."""
        self._numbers[0] = 1

    @property
    def is_ended(self) -> bool:
        """Whether it is enough."""
        return self._numbers[0] == 1


def march(strategy: str, path: str, victim: int, point: str, number: int) -> Seen:
    """Trains until the test says that it is enough. The victim gets a signal from itself on its way."""
    rank, board = my_rank(), Board(path)
    model = model_of(rank)
    opt, jitter = wrapped(model, strategy), delays(0.002)
    data = itertools.cycle(batches(32, 1000 + rank))
    before = held_out(model)
    board.enter(rank)
    while not board.is_ended:
        if rank == victim and board.steps(rank) == VICTIMS_STEPS:
            hit(opt, point, number)
        in_steps(opt, model, [next(data)], jitter)
        board.advance(rank)
    opt.finish()
    return Seen(rank, before, held_out(model), "", digest(model), is_finite(model), opt.stats.steps, opt.stats)


def hit(opt: outpace.DistributedOptimizer, point: str, number: int) -> None:
    """The signal comes here, between two steps, or at a named point of the engine in the next one."""
    if point == BETWEEN_STEPS:
        os.kill(os.getpid(), number)
    opt._engine._faults._armed = (point, 0, number)


@dataclass
class Resumed:
    """What one rank saw of a run that was cut in two."""

    middle: str  # weights and buffers where it was cut: when they were saved, or loaded
    steps: int  # of this rank then
    loss_in_the_middle: float
    final: str = ""
    loss: float = 0.0


def checkpointed(strategy: str, momentum: float, path: str, part: str) -> Resumed:
    """The first half and a checkpoint, the second half from it, or both in one go with a synchronisation between."""
    rank = my_rank()
    model = model_of(rank)
    opt = wrapped(model, strategy, momentum)
    jitter, mine = delays(0.001), f"{path}.{rank}"
    if part != "second":
        in_rounds(opt, model, batches(10 * MICROBATCHES, 1000 + rank), jitter)
        opt.synchronize()
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, mine)
    else:
        saved = torch.load(mine, weights_only=True)
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["optimizer"])
    seen = Resumed(digest(model), opt.stats.steps, held_out(model))
    if part != "first":
        in_rounds(opt, model, batches(10 * MICROBATCHES, 2000 + rank), jitter)
    opt.finish()
    seen.final, seen.loss = digest(model), held_out(model)
    return seen
