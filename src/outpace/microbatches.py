"""Rounds of micro-batches for `DistributedOptimizer.rounds`. Owns counting batches and samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from outpace.errors import InvalidRules


class MicrobatchRound:
    """The micro-batches of one round. Iterate over it once, then call `step()`."""

    def __init__(self, first: Any, rest: Iterator[Any], planned: int) -> None:
        self._batches = itertools.chain([first], itertools.islice(rest, planned - 1))
        self.planned = planned
        self.done = 0  #: micro-batches handed out
        self.samples = 0.0  #: in them

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self.done += 1
            self.samples += batch_size(batch)
            yield batch


def rounds_of(loader: Iterable[Any], microbatches: int) -> Iterator[MicrobatchRound]:
    """Rounds of up to so many micro-batches each; what a round leaves over opens the next."""
    if not isinstance(microbatches, int) or microbatches < 1:
        raise InvalidRules(f"microbatches={microbatches!r} must be a whole number, at least 1")
    batches = iter(loader)
    for first in batches:
        yield MicrobatchRound(first, batches, microbatches)


def batch_size(batch: Any) -> int:
    """Samples in a batch: the length of the first tensor in it."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else 1
    if isinstance(batch, Mapping):
        return batch_size(next(iter(batch.values()), 1))
    if isinstance(batch, Sequence) and not isinstance(batch, str) and batch:
        return batch_size(batch[0])
    return 1
