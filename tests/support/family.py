"""What the ranks of the tests of the whole family do. Runs in processes of its own."""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import outpace
from outpace.engines.arena import log
from tests.support.ranks import TIMEOUT_S, my_rank, world

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
    stats: outpace.observe.figures.Stats


def model_of(rank: int) -> torch.nn.Module:
    torch.manual_seed(rank)  # different on every rank: rank 0's weights must win
    return torch.nn.Sequential(
        torch.nn.Linear(12, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    )


def wrapped(
    model: torch.nn.Module, strategy: str, momentum: float = 0.9, timeout_s: float = TIMEOUT_S
) -> outpace.DistributedOptimizer:
    inner = torch.optim.SGD(model.parameters(), lr=0.02, momentum=momentum)
    return outpace.DistributedOptimizer(inner, strategy=strategy, model=model, timeout_s=timeout_s)


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
    """Of all weights and buffers."""
    return digest_of(model.state_dict().values())


def digest_of(tensors: Iterable[torch.Tensor]) -> str:
    """Of their bytes."""
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()


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
    """Half the data, a synchronisation, the other half. Uneven: some ranks have less in each half."""
    rank = my_rank()
    model = model_of(rank)
    opt, jitter = wrapped(model, strategy), delays(0.002)
    before = held_out(model)
    loop, parts = (in_steps, 1) if plain else (in_rounds, MICROBATCHES)
    half = steps // 2 - (2 * rank % 5 if is_uneven else 0)
    loop(opt, model, batches(half * parts, 1000 + rank), jitter)
    opt.synchronize()
    met = digest(model)
    loop(opt, model, batches(half * parts, 2000 + rank), jitter)
    opt.finish()
    return Seen(rank, before, held_out(model), met, digest(model), is_finite(model), opt.stats.steps, opt.stats)


def train_both(strategy: str, steps: int) -> tuple[Seen, Seen]:
    """In rounds, then in a plain loop, in the same processes."""
    return train(strategy, steps, is_uneven=True), train(strategy, steps, is_uneven=True, plain=True)


def train_in_lock_step(steps: int) -> tuple[str, list[torch.Tensor]]:
    """Everybody in every round, from the same seeds whatever the hosts. The weights' bits, and they themselves."""
    rank = my_rank()
    model = model_of(rank)
    opt = wrapped(model, "allreduce")
    in_steps(opt, model, batches(steps, 1000 + rank), delays(0.0))
    opt.finish()
    return digest(model), [p.detach() for p in model.parameters()]


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


def march(strategy: str, path: str, victim: int, point: str, number: int, timeout_s: float = TIMEOUT_S) -> Seen:
    """Trains until the test says that it is enough. The victim gets a signal from itself on its way."""
    rank, board = my_rank(), Board(path)
    model = model_of(rank)
    opt, jitter = wrapped(model, strategy, timeout_s=timeout_s), delays(0.002)
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


def march_and_count(strategy: str, path: str, victim: int, point: str, number: int) -> tuple[list[float], int]:
    """As `march`, with a log that is cut as often as possible and a weight for each rank that only its steps change.

    Returns how many steps of each rank are in the mean of all weights, and how many this rank made.
    """
    log.CUT_AT_BYTES = 4096
    rank, board = my_rank(), Board(path)
    weight = torch.nn.Parameter(torch.zeros(world(), dtype=torch.float64))
    opt = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), strategy=strategy, timeout_s=TIMEOUT_S)
    jitter = delays(0.002)
    board.enter(rank)
    while not board.is_ended:
        if rank == victim and board.steps(rank) == VICTIMS_STEPS:
            hit(opt, point, number)
        time.sleep(next(jitter))
        weight.grad = torch.zeros_like(weight)
        weight.grad[rank] = 1.0
        opt.step()
        board.advance(rank)
    opt.finish()
    return (-weight.detach() * world()).tolist(), board.steps(rank)


def walk_apart(strategy: str, steps: int) -> tuple[int, list[torch.Tensor]]:
    """This rank's host, and its weights after each step: a sum of what it knows of each rank's steps."""
    weight = torch.nn.Parameter(torch.zeros(world(), dtype=torch.float64))
    opt = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), strategy=strategy, timeout_s=TIMEOUT_S)
    walk = []
    for step in range(1, steps + 1):
        weight.grad = torch.zeros_like(weight)
        weight.grad[my_rank()] = float(step)
        opt.step()
        walk.append(weight.detach().clone())
    opt.finish()
    return opt._engine.rules.hosts[my_rank()], walk


def meet_and_count(runs: int, steps: int) -> list[tuple[list[float], list[float], int]]:
    """Swaps go on while some ranks come to a synchronisation or to their end already, time and again.

    For each run: how many steps of each rank are in the mean, at the synchronisation and at the end, and this rank's.
    """
    return [_meet_and_count(steps, random.Random(f"{run}/{my_rank()}")) for run in range(runs)]


def _meet_and_count(steps: int, draw: random.Random) -> tuple[list[float], list[float], int]:
    weight = torch.nn.Parameter(torch.zeros(world(), dtype=torch.float64))
    opt = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), strategy="ad-psgd", timeout_s=TIMEOUT_S)
    met: list[float] = []
    mine = steps + draw.randrange(4)
    for step in range(1, mine + 1):
        time.sleep(draw.random() * 0.001)
        weight.grad = torch.zeros_like(weight)
        weight.grad[my_rank()] = 1.0
        opt.step()
        if step == steps // 2:
            opt.synchronize()
            met = (-weight.detach() * world()).tolist()
    opt.finish()
    return met, (-weight.detach() * world()).tolist(), mine


def hit(opt: outpace.DistributedOptimizer, point: str, number: int) -> None:
    """The signal comes here, between two steps, or at a named point of the engine in the next one."""
    if point == BETWEEN_STEPS:
        os.kill(os.getpid(), number)
    opt._engine.log.faults._armed = (point, 0, number)


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


def meets_unevenly(strategy: str) -> list[str]:
    """Rank 0 makes more steps before a synchronisation than rank 1. The weights after each step that follows."""
    model = model_of(0)
    opt = wrapped(model, strategy, momentum=0.0)
    no_delay = itertools.repeat(0.0)
    in_steps(opt, model, batches(9 if my_rank() == 0 else 3, 1000), no_delay)
    opt.synchronize()
    seen = []
    for batch in batches(6, 2000 + my_rank()):
        in_steps(opt, model, [batch], no_delay)
        seen.append(digest_of(model.parameters()))
    opt.finish()
    return seen
