"""What a workload is. Owns the interface; a workload knows neither ranks' clocks nor how they communicate."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor, nn
from torch.optim import Optimizer


class Workload(Protocol):
    """A task to train on. Whoever makes it with the same arguments has the same data and the same model."""

    def model(self) -> nn.Module:
        """A new model, untrained."""

    def optimizer(self, model: nn.Module) -> Optimizer:
        """A new optimizer for such a model, with the settings that suit the task."""

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of this rank's step, counted from 0. Raises `InvalidRules` in a world it does not fit."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What is made small: a scalar, the mean over the mini-batch."""

    def held_out_loss(self, model: nn.Module) -> float:
        """The loss on data that no rank trains on."""


@runtime_checkable
class Classifying(Protocol):
    """What a workload that sorts into classes has besides."""

    def held_out_accuracy(self, model: nn.Module) -> float:
        """Share, 0 to 1, of the data that no rank trains on which the model puts into the right class."""


def accuracy_of(workload: Workload, model: nn.Module) -> float | None:
    """The held-out accuracy, 0 to 1, of a workload that has one; None of a regression, which has only a loss."""
    return workload.held_out_accuracy(model) if isinstance(workload, Classifying) else None
