"""What a workload is. Owns the interface; a workload knows neither ranks' clocks nor how they communicate."""

from __future__ import annotations

from typing import Protocol

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
