"""A built-in workload in batches of equal cost, as `LengthBalancedBatches` makes them. Owns how they are dealt."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outpace.data.balanced import Balanced
from outpace.errors import InvalidRules
from outpace.workloads import Score, Workload

PADDING = 0.1  #: as `LengthBalancedBatches` has it


class EqualCosts(Workload):
    """The same task: many short samples in one batch, a few long ones in another. For one world alone."""

    def __init__(self, inner: Workload, world: int, name: str, padding: float | None = PADDING) -> None:
        if inner.lengths is None:
            raise InvalidRules(
                f"the samples of {name} all cost the same: there is nothing to balance. Of the built-in workloads, "
                "sequences and code have samples of unequal length"
            )
        inner.batch(0, 0, world)  # says so if the world does not fit
        self._inner, self._mean_length = inner, float(inner.lengths.double().mean())
        each = inner.mini_batch // world
        self.order = Balanced(inner.lengths, each, None, padding, shuffle=True, seed=inner.seed, most=None)
        self._epochs: list[list[list[int]]] = []  # the batches of each, so far as they were asked for
        self.metric, self.race_epochs = inner.metric, inner.race_epochs
        self.steps_per_epoch = round(len(self._batches(0)) / world)

    def model(self) -> nn.Module:
        return self._inner.model()

    def optimizer(self, model: nn.Module) -> Optimizer:
        return self._inner.optimizer(model)

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        number, epoch = step * world + rank, 0
        while number >= len(self._batches(epoch)):
            number -= len(self._batches(epoch))
            epoch += 1
        return self._inner.samples(torch.tensor(self._batches(epoch)[number]))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._inner.loss(outputs, targets)

    def score(self, model: nn.Module) -> Score:
        return self._inner.score(model)

    def cost(self, inputs: Tensor, outputs: Tensor) -> float:
        """With its padding, which is computed, too."""
        return inputs.shape[1] / self._mean_length

    def size(self, samples: int, world: int) -> float:
        return samples * world / self._inner.mini_batch

    def _batches(self, epoch: int) -> list[list[int]]:
        while len(self._epochs) <= epoch:
            self._epochs.append(self.order.items(len(self._epochs)))
        return self._epochs[epoch]
