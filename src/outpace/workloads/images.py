"""Images from IDX files, the format of MNIST and its relatives. Owns finding and reading them; knows no training."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from outpace.errors import OutpaceError

DEBIAN = Path("/usr/share/datasets/fashion-mnist")  #: where the package dataset-fashion-mnist puts it

_BYTES = 8  #: the code of IDX for unsigned bytes
_TRAIN = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_TEST = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


class Labelled(NamedTuple):
    """Images of [count, rows, columns] bytes, and the class of each."""

    images: Tensor
    classes: Tensor


def read_directory(directory: Path, trained: int, held_out: int) -> tuple[Labelled, Labelled]:
    """The first so many images to train on, and those to test on. Raises `OutpaceError` for what is not there."""
    if not directory.is_dir():
        raise OutpaceError(
            f"the workload vision was given data={directory}, which is no directory: nothing was trained. Give one "
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
    """The first so many bytes, or as many as there are."""
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
