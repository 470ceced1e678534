"""Handwritten digits: a small classifier whose accuracy shows whether late gradients harm.

The 1,797 images of 8 x 8 pixels that scikit-learn ships with (UCI, "Optical Recognition of Handwritten Digits"), and
an MLP of 9,610 parameters. Owns the data, its split and its order. Never imports scikit-learn, which takes a second
and a half: it reads the one file out of the installed package.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outpace.errors import OutpaceError
from outpace.randomness import generator, seeded
from outpace.workloads.base import Classification, Shuffled, check_world

PIXELS, HIDDEN, CLASSES = 64, 128, 10
IMAGES, TRAINED, BATCH = 1797, 1024, 64  #: those not trained on are held out; TRAINED is a multiple of BATCH
LEARNING_RATE, MOMENTUM = 0.1, 0.9  #: good for 97 % of the held-out images after 30 epochs, 480 steps

_BRIGHTEST = 16
_FILE = "datasets/data/digits.csv.gz"  #: within scikit-learn; one line for each image, its pixels and then its class


class Digits(Classification):
    """Handwritten digits and a small classifier; what a step costs is left to the imbalance.

    The seed draws the order and the initial weights: equal on every rank. Which images are held out is drawn from
    `split` alone. It moves the accuracy more than anything a seed draws: compare runs of one split.

    >>> task = Digits(seed=1)
    >>> inputs, targets = task.batch(step=0, rank=3, world=8)
    >>> inputs.shape, targets.shape
    (torch.Size([8, 64]), torch.Size([8]))
    """

    race_epochs = 10.0

    def __init__(self, seed: int = 0, split: int = 0) -> None:
        self.seed, self.split = seed, split
        self._dealt = Shuffled(TRAINED, BATCH, f"digits/{seed}")
        self.steps_per_epoch = self._dealt.steps
        pixels, classes = images()
        order = self._stratified(classes)
        self._inputs, self._targets = pixels[order[:TRAINED]], classes[order[:TRAINED]]
        self._held_out = pixels[order[TRAINED:]], classes[order[TRAINED:]]

    def model(self) -> nn.Module:
        with seeded(f"digits/{self.seed}/model"):
            return nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        check_world(world, BATCH, "digits", "images")
        mine = self._dealt.indices(step, rank, world)
        return self._inputs[mine], self._targets[mine]

    def held_out(self) -> Iterable[tuple[Tensor, Tensor]]:
        return [self._held_out]

    def _stratified(self, classes: Tensor) -> Tensor:
        """An order of all images in which every beginning, and so every split, has as much of each class as it can."""
        shuffled = torch.randperm(len(classes), generator=generator(f"digits/split/{self.split}"))
        depth = torch.empty(len(classes), dtype=torch.float64)  # how far into its own class an image stands
        for digit in range(CLASSES):
            of_class = shuffled[classes[shuffled] == digit]
            depth[of_class] = (torch.arange(len(of_class), dtype=torch.float64) + 0.5) / len(of_class)
        return depth.argsort(stable=True)


@cache
def images() -> tuple[Tensor, Tensor]:
    """Pixels, scaled to -1 to 1, and classes of all images. Read once, in some 30 ms, and never written to."""
    with gzip.open(_path(), "rt") as lines:
        table = torch.tensor([[int(value) for value in line.split(",")] for line in lines])
    if table.shape != (IMAGES, PIXELS + 1):
        raise OutpaceError(f"{_path()} holds {tuple(table.shape)} numbers, not the {IMAGES} digits. Reinstall it")
    return table[:, :PIXELS].float() * (2 / _BRIGHTEST) - 1, table[:, PIXELS].clone()


def _path() -> Path:
    """Of the file within scikit-learn, which is found but not imported."""
    package = find_spec("sklearn")
    for folder in (package.submodule_search_locations or []) if package is not None else []:
        if (path := Path(folder) / _FILE).is_file():
            return path
    raise OutpaceError(
        "the workload digits takes its images from scikit-learn, which is not installed here: nothing was trained. "
        "Install it with pip install 'outpace[data]', or choose the workload hyperplane, which makes its own data"
    )
