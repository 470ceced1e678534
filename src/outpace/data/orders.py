"""What an epoch consists of, in which order: the same on every rank that is given the same data and seed.

Owns permutations, weighted draws and how they are cut into batches. Knows nothing of ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Sized
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from outpace.errors import InvalidRules
from outpace.spec import is_whole


class Order(ABC):
    """The items of every epoch: samples, or batches of them."""

    @abstractmethod
    def items(self, epoch: int) -> Sequence[Any]:
        """Of one epoch, in order. Equal on all ranks."""

    @abstractmethod
    def describe(self) -> str:
        """In words: by this ranks see that they draw from the same data."""

    @property
    def digest(self) -> int:
        return crc32(self.describe().encode())


class Samples(Order):
    """The samples of a set: shuffled as `DistributedSampler` does it with the same seed, in their own order, or drawn
    with replacement by their weights."""

    def __init__(
        self,
        data: Sized | int,
        shuffle: bool = True,
        seed: int = 0,
        weights: Sequence[float] | Tensor | None = None,
        length: int | None = None,
        multiple_of: int = 1,
    ) -> None:
        """multiple_of: what is left over of that in an epoch is left out."""
        self.count = data if isinstance(data, int) else _length_of(data)
        if not is_whole(self.count) or self.count < 1:
            raise InvalidRules(f"a set of {self.count!r} samples: there must be at least one to draw")
        if not is_whole(seed):
            raise InvalidRules(f"seed={seed!r} must be a whole number, the same on all ranks")
        self._shuffle, self._seed = shuffle, seed
        self._weights = None if weights is None else torch.as_tensor(weights, dtype=torch.float64)
        if self._weights is not None:
            self._check_weights(self._weights)
        elif length is not None:
            raise InvalidRules(f"length={length!r} without weights: every sample is drawn once in an epoch")
        self.length = self.count if length is None else length
        self.length -= self.length % multiple_of
        if self.length < 1:
            raise InvalidRules(
                f"{self.count} samples make no batch of {multiple_of}, and drop_last=True leaves out what is not "
                "whole: nothing would be trained. Use a smaller batch_size, or drop_last=False"
            )
        self._latest: tuple[int, Tensor] = -1, torch.empty(0)

    def _check_weights(self, weights: Tensor) -> None:
        if weights.shape != (self.count,):
            raise InvalidRules(f"{list(weights.shape)} weights for {self.count} samples: there must be one for each")
        if not bool((weights >= 0).all()) or not bool(weights.sum() > 0):
            raise InvalidRules("weights must be 0 or more, and not all 0")

    def items(self, epoch: int) -> _Indices:
        if self._latest[0] != epoch:
            self._latest = epoch, self._drawn(torch.Generator().manual_seed(self._seed + epoch))
        return _Indices(self._latest[1])

    def _drawn(self, generator: torch.Generator) -> Tensor:
        if self._weights is not None:
            return torch.multinomial(self._weights, self.length, replacement=True, generator=generator)
        order = torch.randperm(self.count, generator=generator) if self._shuffle else torch.arange(self.count)
        return order[: self.length]

    def describe(self) -> str:
        weights = "" if self._weights is None else f", weights {crc32(self._weights.numpy().tobytes()):08x}"
        return f"{self.count} samples, shuffle={self._shuffle}, seed={self._seed}{weights}, length={self.length}"


class _Indices(Sequence[int]):
    """Of samples, made into numbers when they are asked for."""

    def __init__(self, indices: Tensor) -> None:
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: Any) -> Any:
        return self._indices[place].tolist()


class Batches(Order):
    """Samples in batches of one size; the last one may be smaller."""

    def __init__(self, samples: Samples, size: int) -> None:
        self._samples, self._size = samples, size

    def items(self, epoch: int) -> Sequence[list[int]]:
        return _Cut(self._samples.items(epoch), self._size)

    def describe(self) -> str:
        return f"{self._samples.describe()}, batches of {self._size}"


class _Cut(Sequence[list[int]]):
    def __init__(self, indices: _Indices, size: int) -> None:
        self._indices, self._size = indices, size
        self._count = -(-len(indices) // size)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        """A range of batches, or one of them."""
        first, last, _ = place.indices(self._count) if isinstance(place, slice) else (place, place + 1, 1)
        size, indices = self._size, self._indices
        found = [indices[begin : begin + size] for begin in range(first * size, last * size, size)]
        return found if isinstance(place, slice) else found[0]


def check_batch_size(batch_size: int) -> None:
    if not is_whole(batch_size) or batch_size < 1:
        raise InvalidRules(f"batch_size={batch_size!r} must be a whole number of samples, at least 1")


def _length_of(data: Any) -> int:
    try:
        return len(data)
    except TypeError:
        raise InvalidRules(
            f"{type(data).__name__} has no length, so that its samples cannot be dealt out by number. For an "
            "IterableDataset use outpace.data.SharedStream"
        ) from None
