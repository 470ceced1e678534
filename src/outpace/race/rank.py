"""The life of one rank in a race. Owns the loop that all systems share, when it ends, and what a step's computing is.

Unless told to compute for real, computing is emulated. Ranks of a race share a few cores, so their gradients would hold
up each other and nothing else would be seen. A step therefore makes its real data and real forward pass, sleeps, and
runs its real backward pass in time to be done when as much has passed as the batch and the imbalance ask for.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outpace.data import SharedBatchSampler
from outpace.data.balanced import EqualCosts
from outpace.imbalance import imbalance
from outpace.job.environment import whereami
from outpace.race.result import Point, Settings
from outpace.race.systems import system
from outpace.workloads import Workload, workload

_NOT_AGREED = 2**62  #: no last step was agreed on yet
_MOST_SHARED = 10**5  #: steps of a rank in a race that ends by the clock
POINTS = 32  #: of a curve, and one at its beginning
BACKWARD = 2.0  #: times as long as the forward pass, as is usual


class FinishLine:
    """After a number of steps, or of seconds from a rank's first step. Made by the parent, shared by all ranks.

    Ranks that are in step would wait forever for one that stops a step before them. When the time of one of them is
    up, it looks how far the furthest is, and all go on to there: each announces a step before it takes it.
    """

    def __init__(self, ranks: int, steps: int | None, seconds: float | None) -> None:
        context: Any = multiprocessing.get_context("forkserver")
        self._steps, self._seconds = steps, seconds
        self._lock = context.Lock()
        self._begun = context.RawArray("q", ranks)  # steps that each rank has taken or is in
        self._last = context.RawValue("q", _NOT_AGREED)
        self._started: float | None = None  # when this rank's first step began

    def progress(self, done: float) -> float:
        """Share of a rank's training that is done after so many steps."""
        return self._share_of_time() if self._steps is None else done / self._steps

    def steps(self, rank: int, is_strict: bool) -> Iterator[int]:
        """The numbers of this rank's steps, from 0. The clock starts with the first."""
        self._started = time.monotonic()
        step = 0
        while not self._is_over(rank, step, is_strict):
            yield step
            step += 1

    def total(self, ranks: int) -> int:
        """Mini-batches of all ranks, if they share them; more than anybody makes where the race ends by the clock."""
        return ranks * (_MOST_SHARED if self._steps is None else self._steps)

    def while_time(self) -> Iterator[None]:
        """Goes on until the time is up, and without end where steps are counted."""
        self._started = time.monotonic()
        while self._steps is not None or self._share_of_time() < 1:
            yield

    def _is_over(self, rank: int, step: int, is_strict: bool) -> bool:
        if self._steps is not None:
            return step >= self._steps
        is_late = self._share_of_time() >= 1
        if not is_strict:
            return is_late
        with self._lock:
            if is_late and self._last.value == _NOT_AGREED:
                self._last.value = max(self._begun)
            if step < self._last.value:
                self._begun[rank] = step + 1
            return step >= int(self._last.value)

    def _share_of_time(self) -> float:
        assert self._seconds is not None, "a race has a length"
        return 0.0 if self._started is None else (time.monotonic() - self._started) / self._seconds


class Piece(NamedTuple):
    inputs: Tensor
    targets: Tensor
    step: int  #: the mini-batch that it is of, counted from 0
    part: int  #: of that mini-batch, likewise
    made_s: float  #: how long it took to make
    size: float  #: of the mini-batch, where 1 is the usual one


@dataclass(frozen=True)
class RankReport:
    """What one rank reports about its training, besides its recording."""

    samples: float
    curve: tuple[Point, ...]  #: of rank 0; seconds are counted from its own first step
    asked_s: float  #: how long its computing should have taken; 0 where nobody says


def task_of(settings: Settings, seed: int) -> Workload:
    """What is trained, in mini-batches as the settings ask for."""
    task = workload(settings.workload, seed)
    return EqualCosts(task, settings.ranks, settings.workload) if settings.is_balanced else task


def optimizer_of(task: Workload, model: nn.Module, factor: float) -> Optimizer:
    """The workload's own, with its learning rate times a factor."""
    optimizer = task.optimizer(model)
    for group in optimizer.param_groups:
        group["lr"] *= factor
    return optimizer


def train(
    name: str, settings: Settings, seed: int, directory: Path, line: FinishLine, learning_rate: float = 1.0
) -> RankReport:
    """Trains as rank of a world that torchrun's variables describe, with so many times the workload's learning rate.
    Blocks until the training has ended."""
    task, chosen = task_of(settings, seed), system(name)
    model = task.model()
    parts = settings.microbatches if chosen.polls else 1
    course = _Course(task, settings, seed, parts, line)
    course.warm_up(model)
    chosen.start(model, optimizer_of(task, model, learning_rate), directory)
    seen = _Curve(task, model, course)
    for pieces in chosen.rounds(course.pieces(is_strict=chosen.in_step), parts):
        losses, samples = [], 0
        for piece in pieces:
            losses.append(course.compute(chosen.model, piece))
            samples += len(piece.inputs)
        chosen.step(fmean(losses), samples)
        seen.look()
    chosen.finish()
    seen.look(at_end=True)
    points = seen.points()
    chosen.close()
    return RankReport(course.samples, points, course.asked_s)


class _Course:
    """What a rank has to compute, and how long that takes."""

    def __init__(self, task: Workload, settings: Settings, seed: int, parts: int, line: FinishLine) -> None:
        self._task, self._parts, self._line = task, parts, line
        self._place = whereami()
        self._is_shared = settings.is_shared
        self._base_s = settings.compute_ms / 1000
        self._imbalance = imbalance(settings.imbalance, seed)
        self.samples = 0.0  #: that were computed; what a strategy had computed twice counts once
        self.steps = 0  #: mini-batches begun
        self._seen = (-1, -1)  # the last micro-batch that was new
        self.asked_s = 0.0  #: how long all that was computed should have taken, where computing is emulated

    @property
    def progress(self) -> float:
        return self._line.progress(self.steps)

    @property
    def epoch(self) -> float:
        """Epochs so far, if the other ranks are as far as this one."""
        return self.steps / self._task.steps_per_epoch

    def warm_up(self, model: nn.Module) -> None:
        """One gradient that is thrown away, so that no system pays for the first use of memory and kernels."""
        inputs, targets = self._task.batch(0, self._place.rank, self._place.world)
        self._task.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        model.zero_grad()

    def pieces(self, is_strict: bool) -> Iterator[Piece]:
        """Micro-batches until the finish. Where `is_strict`, all ranks make the same number of steps."""
        for own, (step, rank) in enumerate(self._turns(is_strict)):
            began = time.monotonic()
            batch = self._task.batch(step, rank, self._place.world)
            split = zip(*(tensor.tensor_split(self._parts) for tensor in batch), strict=True)
            made_s = (time.monotonic() - began) / self._parts
            self.steps = step + 1
            size = self._task.size(len(batch[0]), self._place.world)
            for part, (inputs, targets) in enumerate(split):
                if len(inputs):
                    yield Piece(inputs, targets, own, part, made_s, size)

    def _turns(self, is_strict: bool) -> Iterator[tuple[int, int]]:
        """Which mini-batches this rank computes, as the step and the rank that would compute it if data are split."""
        rank, world = self._place.rank, self._place.world
        own = self._line.steps(rank, is_strict)
        if is_strict or not self._is_shared:
            yield from ((step, rank) for step in own)
            return
        total = self._line.total(world)
        for (place,), _ in zip(SharedBatchSampler(total, 1, shuffle=False), self._line.while_time(), strict=False):
            yield divmod(place, world)

    def compute(self, model: nn.Module, piece: Piece) -> float:
        """Forward, the rest of the time that computing takes, and backward. Returns the loss."""
        began, ran = time.monotonic() - piece.made_s, time.thread_time()
        outputs = model(piece.inputs)
        loss = self._task.loss(outputs, piece.targets)
        backward_s = BACKWARD * (time.thread_time() - ran)
        due_s = self._due_s(piece, outputs, time.monotonic() - began + backward_s)
        time.sleep(max(0.0, began + due_s - backward_s - time.monotonic()))
        self.asked_s += due_s if self._base_s else 0.0
        loss.backward()  # type: ignore[no-untyped-call]
        if (piece.step, piece.part) > self._seen:
            self._seen = piece.step, piece.part
            self.samples += len(piece.inputs)
        return loss.item()

    def _due_s(self, piece: Piece, outputs: Tensor, real_s: float) -> float:
        """How long computing takes, where it really takes `real_s`."""
        emulated_s = self._base_s * self._task.cost(piece.inputs, outputs) * piece.size
        base_s = emulated_s if self._base_s else real_s * self._parts
        return self._imbalance.compute_s(self._place.rank, self._place.world, piece.step, base_s) / self._parts


class _Curve:
    """How good rank 0's model was in the course of time.

    While it trains, its weights are only copied, which takes next to no time; they are scored after the end.
    """

    def __init__(self, task: Workload, model: nn.Module, course: _Course) -> None:
        self._task, self._model, self._course = task, model, course
        self._is_first = whereami().rank == 0
        self._began = time.monotonic()
        self._kept: list[tuple[float, float, dict[str, Tensor]]] = []
        self.look()

    def look(self, at_end: bool = False) -> None:
        if self._is_first and (at_end or self._course.progress * POINTS >= len(self._kept)):
            weights = {name: tensor.clone() for name, tensor in self._model.state_dict().items()}
            self._kept.append((time.monotonic() - self._began, self._course.epoch, weights))

    @torch.no_grad()
    def points(self) -> tuple[Point, ...]:
        """Scores what was kept, and leaves the model as it was at the end. Takes a while."""
        return tuple(self._scored(*kept) for kept in self._kept)

    def _scored(self, seconds: float, epoch: float, weights: dict[str, Tensor]) -> Point:
        self._model.load_state_dict(weights)
        return Point(seconds, epoch, *self._task.score(self._model))
