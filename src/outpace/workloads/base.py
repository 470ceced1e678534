"""What a workload is. Owns the interface; a workload knows neither ranks' clocks nor how they communicate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Metric(NamedTuple):
    """By what a workload's models are compared."""

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
        """Whether a model of this value is as good as the target, or better."""
        return value >= target if self.higher_is_better else value <= target


LOSS = Metric("loss", higher_is_better=False)
ACCURACY = Metric("accuracy", higher_is_better=True, is_share=True)


class Score(NamedTuple):
    """How good a model is, on data that no rank trains on."""

    loss: float
    metric: float  #: what the workload's `metric` names; the loss once more where that is all there is


class Workload(ABC):
    """A task to train on. Whoever makes it with the same arguments has the same data and the same model."""

    metric = LOSS  #: what `score` measures besides the loss
    race_epochs: float = 10.0  #: how long a race trains, unless told otherwise: until the metric hardly gets better

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """Steps of every rank in which the ranks together see the training data once, in a world of any size."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model, untrained. All of one seed begin alike, and the caller's random numbers are left alone."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """A new optimizer for such a model, with the settings that suit the task."""

    @abstractmethod
    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of this rank's step, counted from 0, for ever. Their first dimension counts samples, so
        that they can be split into micro-batches. Raises `InvalidRules` in a world that they do not fit."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What is made small: a scalar, the mean over the mini-batch."""

    @abstractmethod
    def score(self, model: nn.Module) -> Score:
        """How good a model is. Leaves it as it was."""

    def cost(self, inputs: Tensor, outputs: Tensor) -> float:
        """How long this (micro-)batch takes to compute, where 1 is the mean of as many samples.

        Where samples differ in size, this is the imbalance that they bring along. Equal parts of a mini-batch have its
        cost in the mean, so that nobody gains or loses by splitting it.
        """
        return 1.0


class Classification(Workload):
    """A task whose targets are classes."""

    metric = ACCURACY

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy."""
        return nn.functional.cross_entropy(outputs, targets)

    @torch.no_grad()
    def score(self, model: nn.Module) -> Score:
        """The loss on samples that no rank trains on, and the share of them whose class the model finds."""
        answers = [(model(inputs), targets) for inputs, targets in self.held_out()]
        outputs, targets = (torch.cat(parts) for parts in zip(*answers, strict=True))
        right = (outputs.argmax(dim=1) == targets).float().mean()
        return Score(float(self.loss(outputs, targets)), float(right))

    @abstractmethod
    def held_out(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Inputs and targets that no rank trains on, in parts that fit into memory."""
