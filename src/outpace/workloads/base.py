"""What a workload is, and how its data is dealt to ranks. A workload knows neither ranks' clocks nor communication."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outpace.errors import InvalidRules
from outpace.randomness import generator


class Metric(NamedTuple):
    name: str
    higher_is_better: bool
    is_share: bool = False  #: 0 to 1, read as a percentage

    def text(self, value: float) -> str:
        """As people read it.

        >>> ACCURACY.text(0.9731)
        '97.3%'
        """
        return f"{value:.1%}" if self.is_share else f"{value:.4g}"

    def is_reached(self, value: float, target: float) -> bool:
        return value >= target if self.higher_is_better else value <= target


LOSS = Metric("loss", higher_is_better=False)
ACCURACY = Metric("accuracy", higher_is_better=True, is_share=True)


class Score(NamedTuple):
    """How good a model is, on data that no rank trains on."""

    loss: float
    metric: float  #: what the workload's `metric` names; the loss once more where that is all there is


class Workload(ABC):
    """A task to train on. Equal arguments give equal data and equal models."""

    seed: int
    metric = LOSS  #: what `score` measures besides the loss
    steps_per_epoch: int  #: of every rank, in which the ranks together see the training data once; in any world
    lengths: Tensor | None = None  #: of the training samples, if they are what is uneven by nature
    by_nature = ""  #: what makes mini-batches cost more or less, in a word; empty where all cost the same
    mini_batch: int  #: samples, of all ranks together; only where there are lengths
    race_epochs: float = 10.0  #: how long a race trains, unless told otherwise: until the metric hardly gets better

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model, untrained. Equal for equal seeds; leaves the caller's random numbers alone."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """A new optimizer for such a model, with the settings that suit the task."""

    @abstractmethod
    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of this rank's step, counted from 0, without end. Their first dimension counts samples, so
        that they can be split into micro-batches. Raises `InvalidRules` in a world that they do not fit."""

    def samples(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these training samples. Only where there are lengths."""
        raise NotImplementedError

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The training loss: a scalar, the mean over the mini-batch."""

    @abstractmethod
    def score(self, model: nn.Module) -> Score:
        """How good a model is. Leaves it as it was."""

    def cost(self, inputs: Tensor, outputs: Tensor) -> float:
        """How long this (micro-)batch takes to compute, where 1 is the mean of as many samples.

        Where samples differ in size, this is the imbalance that they bring along. Equal parts of a mini-batch have its
        cost in the mean, so that nobody gains or loses by splitting it.
        """
        return 1.0

    def size(self, samples: int, world: int) -> float:
        """Of a mini-batch of so many samples, where 1 is the usual one. Differs only where they are cut to one cost."""
        return 1.0


class Classification(Workload):
    metric = ACCURACY

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets)

    @torch.no_grad()
    def score(self, model: nn.Module) -> Score:
        answers = [(model(inputs), targets) for inputs, targets in self.held_out()]
        outputs, targets = (torch.cat(parts) for parts in zip(*answers, strict=True))
        right = (outputs.argmax(dim=1) == targets).float().mean()
        return Score(float(self.loss(outputs, targets)), float(right))

    @abstractmethod
    def held_out(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Inputs and targets that no rank trains on, in parts that fit into memory."""


def check_world(world: int, batch: int, workload: str, samples: str) -> None:
    """Raises `InvalidRules` if a workload's mini-batch has fewer samples than there are ranks."""
    if not 1 <= world <= batch:
        raise InvalidRules(
            f"{workload}'s mini-batch of {batch} {samples} can be split over 1 to {batch} ranks, not {world}"
        )


class Shuffled:
    """Deals samples to ranks in an order that changes with every epoch."""

    def __init__(self, count: int, batch: int, which: str) -> None:
        self.steps = count // batch  #: of an epoch, in a world of any size
        self._count, self._batch, self._which = count, batch, which

    def indices(self, step: int, rank: int, world: int) -> Tensor:
        epoch, place = divmod(step, self.steps)
        order = torch.randperm(self._count, generator=generator(f"{self._which}/epoch/{epoch}"))
        return order[place * self._batch : (place + 1) * self._batch][rank::world]


class Buckets:
    """Deals samples to ranks so that each mini-batch holds samples of similar length, and pads little.

    In every epoch, all samples are sorted by length, cut into as many buckets as there are steps of all ranks, and the
    buckets are dealt in a random order. Samples of equal length change places from epoch to epoch.
    """

    def __init__(self, lengths: Tensor, batch: int, which: str) -> None:
        self.steps = len(lengths) // batch  #: of an epoch, in a world of any size
        self._lengths, self._which = lengths, which
        self._latest: tuple[int, Tensor] = -1, lengths

    def indices(self, step: int, rank: int, world: int) -> Tensor:
        """Of the samples of this rank's step, shortest first."""
        epoch, place = divmod(step, self.steps)
        count = self.steps * world
        dealt = torch.randperm(count, generator=generator(f"{self._which}/buckets/{epoch}"))
        bucket = int(dealt[place * world + rank])
        order = self._order(epoch)
        return order[bucket * len(order) // count : (bucket + 1) * len(order) // count]

    def _order(self, epoch: int) -> Tensor:
        """All samples by length. Kept for the epoch, because sorting costs more than the rest of a batch."""
        if self._latest[0] != epoch:
            shuffled = torch.randperm(len(self._lengths), generator=generator(f"{self._which}/ties/{epoch}"))
            self._latest = epoch, shuffled[self._lengths[shuffled].argsort(stable=True)]
        return self._latest[1]
