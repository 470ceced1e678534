"""Hyperplane regression: the first workload of the eager-SGD paper (PPoPP 2020, section 7.2.1).

A hidden hyperplane in 8,192 dimensions is learned from 32,768 noisy points by one linear layer, 8,193 parameters. Owns
the data. Points are made when they are needed and are the same in every epoch: stored, they would be 1 GiB.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outpace.randomness import generator as generator_of
from outpace.workloads.base import Score, Workload, check_world

DIMENSIONS, POINTS, BATCH = 8192, 32768, 2048  #: as in the paper
LEARNING_RATE = 0.05  #: a quarter of where SGD diverges here: room for gradients that come a few rounds late
SIGNAL, NOISE = 10.0, 1.0  #: standard deviations of the hyperplane's values and of what hides them
HELD_OUT, BLOCK = 1024, 256  #: validation points, and how many of them are in memory at a time

_BYTE_SPREAD = math.sqrt((256**2 - 1) / 12)  #: standard deviation of a uniform byte


class Hyperplane(Workload):
    """A hidden hyperplane and one linear layer, as in the eager-SGD paper; costs are left to the imbalance.

    The task of a seed is equal on every rank that makes it.

    >>> task = Hyperplane(seed=1)
    >>> inputs, targets = task.batch(step=0, rank=3, world=8)
    >>> inputs.shape, targets.shape
    (torch.Size([256, 8192]), torch.Size([256, 1]))
    """

    steps_per_epoch = POINTS // BATCH
    race_epochs = 4.0

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        generator = generator_of(f"{self.seed}/hyperplane")
        weight = torch.randn(1, DIMENSIONS, generator=generator)
        self._weight = weight * (SIGNAL / weight.norm())
        self._bias = torch.randn(1, generator=generator)

    def model(self) -> nn.Linear:
        """The model to train. It begins at zero, so that all runs begin alike."""
        model = nn.Linear(DIMENSIONS, 1)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        return model

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        """This rank's part of the mini-batch of a step: real work of a few milliseconds, no memory kept."""
        check_world(world, BATCH, "hyperplane", "points")
        count = BATCH // world + (rank < BATCH % world)
        return self._points(count, f"train/{step % self.steps_per_epoch}/{rank}/{world}")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, targets)

    @torch.no_grad()
    def score(self, model: nn.Module) -> Score:
        blocks = [self._points(BLOCK, f"held out/{block}") for block in range(HELD_OUT // BLOCK)]
        loss = sum(float(self.loss(model(x), y)) for x, y in blocks) / len(blocks)
        return Score(loss, loss)

    def noise_floor(self) -> float:
        """The held-out loss of the hidden hyperplane itself: no model can do better but by luck."""
        truth = self.model()
        truth.load_state_dict({"weight": self._weight, "bias": self._bias})
        return self.score(truth).loss

    def _points(self, count: int, which: str) -> tuple[Tensor, Tensor]:
        """Coordinates uniform with mean 0 and variance 1, from random bytes: eight for the price of one number."""
        generator = generator_of(f"{self.seed}/{which}")
        words = torch.empty(count * DIMENSIONS // 8, dtype=torch.int64).random_(-(2**63), None, generator=generator)
        inputs = words.view(torch.int8).to(torch.float32).add_(0.5).mul_(1 / _BYTE_SPREAD).view(count, DIMENSIONS)
        noise = NOISE * torch.randn(count, 1, generator=generator)
        return inputs, nn.functional.linear(inputs, self._weight, self._bias) + noise
