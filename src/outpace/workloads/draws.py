"""Random numbers and shares that workloads have in common. Owns how data is dealt to ranks; touches no global state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from outpace.errors import InvalidRules


def seed_of(which: str) -> int:
    """A seed for whatever has this name: the same in every process."""
    return int.from_bytes(hashlib.blake2b(which.encode(), digest_size=7).digest(), "big")


def generator(which: str) -> torch.Generator:
    """A generator of its own for whatever has this name."""
    return torch.Generator().manual_seed(seed_of(which))


@contextmanager
def seeded(which: str) -> Iterator[None]:
    """A context in which torch draws what this name says, for instance a model's beginning; afterwards as if it never
    had been."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(which))
        yield


def check_world(world: int, batch: int, workload: str, samples: str) -> None:
    """Raises `InvalidRules` if a workload's mini-batch has fewer samples than there are ranks."""
    if not 1 <= world <= batch:
        raise InvalidRules(
            f"{workload}'s mini-batch of {batch} {samples} can be split over 1 to {batch} ranks, not {world}"
        )


class Shuffled:
    """Deals samples to ranks in an order that is another one in every epoch."""

    def __init__(self, count: int, batch: int, which: str) -> None:
        self.steps = count // batch  #: of an epoch, in a world of any size
        self._count, self._batch, self._which = count, batch, which

    def indices(self, step: int, rank: int, world: int) -> Tensor:
        """Of the samples of this rank's step."""
        epoch, place = divmod(step, self.steps)
        order = torch.randperm(self._count, generator=generator(f"{self._which}/epoch/{epoch}"))
        return order[place * self._batch : (place + 1) * self._batch][rank::world]


class Buckets:
    """Deals samples to ranks so that each mini-batch holds samples of similar length, and pads little.

    In every epoch, all samples are sorted by length, cut into as many buckets as there are steps of all ranks, and the
    buckets are dealt in a random order. Samples of equal length change places from epoch to epoch.
    """

    def __init__(self, lengths: Tensor, batch: int, which: str) -> None:
        self.steps = len(lengths) // batch  #: of an epoch, in a world of any size
        self._lengths, self._which = lengths, which
        self._latest: tuple[int, Tensor] = -1, lengths

    def indices(self, step: int, rank: int, world: int) -> Tensor:
        """Of the samples of this rank's step, shortest first."""
        epoch, place = divmod(step, self.steps)
        count = self.steps * world
        dealt = torch.randperm(count, generator=generator(f"{self._which}/buckets/{epoch}"))
        bucket = int(dealt[place * world + rank])
        order = self._order(epoch)
        return order[bucket * len(order) // count : (bucket + 1) * len(order) // count]

    def _order(self, epoch: int) -> Tensor:
        """All samples by length. Kept for the epoch, because sorting costs more than the rest of a batch."""
        if self._latest[0] != epoch:
            shuffled = torch.randperm(len(self._lengths), generator=generator(f"{self._which}/ties/{epoch}"))
            self._latest = epoch, shuffled[self._lengths[shuffled].argsort(stable=True)]
        return self._latest[1]
