"""Real images: a small residual network on Fashion-MNIST, or on scikit-learn's digits where that is not installed.

Owns which images are used and the model. To let eight ranks share two cores, images of 28 x 28 pixels are halved to
14 x 14 (each pixel the mean of four), the first 8,192 of the 60,000 are trained on, and the first 2,000 of the 10,000
test images are held out. The network has no batch normalisation, whose statistics ranks would have to share.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outpace.errors import OutpaceError
from outpace.randomness import seeded
from outpace.workloads import digits
from outpace.workloads.base import Classification, Shuffled, check_world

TRAINED, HELD_OUT, BATCH, CLASSES = 8192, 2000, 128, 10
SMALL = digits.TRAINED  #: trained on of the small digits, as they come: the last ones were written by other people
CHANNELS, GROUPS, LARGEST = 8, 4, 20  #: images with more pixels a side than LARGEST are halved
LEARNING_RATE = 0.0015  #: twice as much learns faster, but suffers from late gradients
RACE_STEPS = 320
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  #: where the package dataset-fashion-mnist puts it

_BYTES = 8  #: the code of IDX for unsigned bytes
_TRAIN = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_TEST = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


class Vision(Classification):
    """A residual network on real images: Fashion-MNIST where Debian's package is installed, else small digits.

    `data` is a directory with the four files of MNIST or a relative of it, such as Fashion-MNIST or KMNIST. Which
    images are held out is fixed by the dataset; the seed draws the order and the initial weights.

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
        self.steps_per_epoch = self._dealt.steps
        self.race_epochs = RACE_STEPS / self.steps_per_epoch

    def model(self) -> nn.Module:
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
        check_world(world, BATCH, "vision", "images")
        mine = self._dealt.indices(step, rank, world)
        return self._inputs[mine], self._targets[mine]

    def held_out(self) -> Iterable[tuple[Tensor, Tensor]]:
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
    pixels = labelled.images[:, None].float() * (2 / 255) - 1
    if max(pixels.shape[-2:]) > LARGEST:
        pixels = nn.functional.avg_pool2d(pixels, 2)
    return pixels, labelled.classes


# -- IDX files, the format of MNIST and its relatives ------------------------------------------------------------------


class Labelled(NamedTuple):
    """Images of [count, rows, columns] bytes, and the class of each."""

    images: Tensor
    classes: Tensor


def read_directory(directory: Path, trained: int, held_out: int) -> tuple[Labelled, Labelled]:
    """The first so many images to train on, and those to test on. Raises `OutpaceError` for what is not there."""
    if not directory.is_dir():
        raise OutpaceError(
            f"the workload vision was given data={directory}, which is not a directory: nothing was trained. Give one "
            f"with the files {', '.join(_TRAIN + _TEST)} (each may end in .gz), or leave data out"
        )
    return _read_pair(directory, _TRAIN, trained), _read_pair(directory, _TEST, held_out)


def read_idx(path: Path, dimensions: int, count: int) -> Tensor:
    """The first `count` items of an IDX file of bytes, plain or compressed. Reads no further than that."""
    head = _bytes_of(path, 4 + 4 * dimensions)
    if len(head) < 4 + 4 * dimensions or head[:4] != bytes([0, 0, _BYTES, dimensions]):
        raise OutpaceError(
            f"{path} is not an IDX file of bytes in {dimensions} dimension(s): it begins with "
            f"{head[:4].hex(' ') or 'nothing'} instead of 00 00 08 {dimensions:02x}. Fetch it again"
        )
    found, *shape = (int.from_bytes(head[at : at + 4], "big") for at in range(4, len(head), 4))
    if found < count:
        raise OutpaceError(f"{path} has {found:,} items; {count:,} are needed. Give the whole dataset")
    wanted = len(head) + count * math.prod(shape)
    content = _bytes_of(path, wanted)
    if len(content) < wanted:
        raise OutpaceError(f"{path} is cut off after {len(content):,} of at least {wanted:,} bytes. Fetch it again")
    return torch.frombuffer(bytearray(content[len(head) :]), dtype=torch.uint8).view(count, *shape)


def _read_pair(directory: Path, names: tuple[str, str], count: int) -> Labelled:
    images, labels = (_find(directory, name) for name in names)
    pair = Labelled(read_idx(images, 3, count), read_idx(labels, 1, count).long())
    if min(pair.images.shape[1:]) < 8 or int(pair.classes.max()) > 9:
        raise OutpaceError(
            f"{images} has images of {' x '.join(map(str, pair.images.shape[1:]))} pixels and classes up to "
            f"{int(pair.classes.max())}; vision needs 8 x 8 pixels or more, and ten classes. Give MNIST or a relative"
        )
    return pair


def _find(directory: Path, name: str) -> Path:
    for path in (directory / f"{name}.gz", directory / name):
        if path.is_file():
            return path
    missing = [each for each in _TRAIN + _TEST if not any((directory / (each + end)).is_file() for end in ("", ".gz"))]
    raise OutpaceError(
        f"the workload vision finds no {name} in {directory}: nothing was trained. Missing there, each with or without "
        f".gz at its end: {', '.join(missing)}"
    )


def _bytes_of(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as plain:
            is_compressed = plain.read(2) == b"\x1f\x8b"
        with gzip.open(path) if is_compressed else path.open("rb") as stream:
            return _up_to(stream, count)
    except (OSError, zlib.error) as error:
        raise OutpaceError(f"{path} cannot be read: {error}. Fetch it again, or see who may read it") from error


def _up_to(stream: object, count: int) -> bytes:
    """Reads piece by piece, so that a compressed file that was cut off gives what it has."""
    pieces = bytearray()
    try:
        while len(pieces) < count and (piece := stream.read(min(1 << 16, count - len(pieces)))):  # type: ignore[attr-defined]
            pieces += piece
    except EOFError:
        pass
    return bytes(pieces)
