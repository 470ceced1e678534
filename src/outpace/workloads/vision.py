"""Real images: a small residual network on Fashion-MNIST, or on scikit-learn's digits where that is not installed.

Owns which images are used and the model. To let eight ranks share two cores, images of 28 x 28 pixels are halved to
14 x 14 (each pixel the mean of four), the first 8,192 of the 60,000 are trained on, and the first 2,000 of the 10,000
test images are held out. The network has no batch normalisation, whose statistics ranks would have to share.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outpace.workloads import digits
from outpace.workloads.base import Classification
from outpace.workloads.draws import Shuffled, check_world, seeded
from outpace.workloads.images import DEBIAN, Labelled, read_directory

TRAINED, HELD_OUT, BATCH, CLASSES = 8192, 2000, 128, 10
SMALL = digits.TRAINED  #: trained on of the small digits, as they come: the last ones were written by other people
CHANNELS, GROUPS, LARGEST = 8, 4, 20  #: images with more pixels a side than LARGEST are halved
LEARNING_RATE = 0.0015  #: twice as much learns faster, but suffers from late gradients
RACE_STEPS = 320


class Vision(Classification):
    """A residual network on real images: Fashion-MNIST where Debian's package is installed, else small digits.

    `data` is a directory with the four files of MNIST or a relative of it, such as Fashion-MNIST or KMNIST. Which
    images are held out is fixed by the dataset; the seed draws the order and the model's beginning.

    >>> task = Vision(seed=1)
    >>> inputs, targets = task.batch(step=0, rank=3, world=8)
    >>> inputs.shape[:2], targets.shape
    (torch.Size([16, 1]), torch.Size([16]))
    """

    race_epochs = RACE_STEPS * BATCH / TRAINED

    def __init__(self, seed: int = 0, data: str | None = None) -> None:
        self.seed = seed
        trained, held_out = _images(data)
        self._inputs, self._targets = trained
        self._held_out = held_out
        self._dealt = Shuffled(len(self._inputs), BATCH, f"vision/{seed}")
        self.race_epochs = RACE_STEPS / self.steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Steps of every rank in which the ranks together see each training image once, in a world of any size."""
        return self._dealt.steps

    def model(self) -> nn.Module:
        """A stem, two residual blocks, and a linear layer."""
        with seeded(f"vision/{self.seed}/model"):
            return nn.Sequential(
                nn.Conv2d(1, CHANNELS, 3, padding=1, bias=False),
                Residual(CHANNELS, 2 * CHANNELS),
                Residual(2 * CHANNELS, 4 * CHANNELS),
                nn.GroupNorm(GROUPS, 4 * CHANNELS),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(2),
                nn.Flatten(),
                nn.Linear(4 * 4 * CHANNELS, CLASSES),
            )

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Adam: SGD with momentum loses several points here when gradients come late."""
        return torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        """This rank's part of the mini-batch of a step. Every epoch has an order of its own."""
        check_world(world, BATCH, "vision", "images")
        mine = self._dealt.indices(step, rank, world)
        return self._inputs[mine], self._targets[mine]

    def held_out(self) -> Iterable[tuple[Tensor, Tensor]]:
        """The images that no rank trains on."""
        return zip(*(part.tensor_split(-(-len(part) // BATCH)) for part in self._held_out), strict=True)


class Residual(nn.Module):
    """Two convolutions beside a shortcut; halves the image."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(GROUPS, inner),
            nn.ReLU(),
            nn.Conv2d(inner, outer, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(GROUPS, outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 3, padding=1, bias=False),
        )
        self.shortcut = nn.Conv2d(inner, outer, 1, stride=2, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """What the body adds to the shortcut."""
        outputs: Tensor = self.shortcut(inputs) + self.body(inputs)
        return outputs


def _images(data: str | None) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images of [count, 1, rows, columns], -1 to 1, with their classes: to train on, and held out."""
    if data is None and not DEBIAN.is_dir():
        pixels, classes = digits.images()
        pixels = pixels.view(-1, 1, 8, 8)
        return (pixels[:SMALL], classes[:SMALL]), (pixels[SMALL:], classes[SMALL:])
    trained, held_out = read_directory(DEBIAN if data is None else Path(str(data)).expanduser(), TRAINED, HELD_OUT)
    return _prepared(trained), _prepared(held_out)


def _prepared(labelled: Labelled) -> tuple[Tensor, Tensor]:
    """Pixels from -1 to 1, of halved images where they are large."""
    pixels = labelled.images[:, None].float() * (2 / 255) - 1
    if max(pixels.shape[-2:]) > LARGEST:
        pixels = nn.functional.avg_pool2d(pixels, 2)
    return pixels, labelled.classes
