"""Rounds of micro-batches for `DistributedOptimizer.rounds`. Owns the counting, and what is left for the next round."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from outpace.errors import InvalidRules
from outpace.strategies.base import After

Boundary = Callable[["MicrobatchRound"], After]


class Batches:
    """A loader's batches, preceded by those that were given back to be computed again."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = iter(loader)
        self._again: deque[Any] = deque()
        self._taken = self._told = 0  # batches taken and not given back; how many of them were reported

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = self._again.popleft() if self._again else next(self._loader)
        self._taken += 1
        return batch

    def newly_taken(self) -> int:
        """Batches taken since the last call. Negative if a reported batch was given back."""
        newly, self._told = self._taken - self._told, self._taken
        return newly

    @property
    def has_more(self) -> bool:
        """Whether there is another batch. Fetches it from the loader to find out."""
        for batch in self:
            self.give_back(batch)
            return True
        return False

    def give_back(self, batch: Any) -> None:
        self._again.appendleft(batch)
        self._taken -= 1


class MicrobatchRound:
    """The micro-batches of one round. Iterate over it once, then call `step()`."""

    def __init__(self, batches: Batches, planned: int, boundary: Boundary, drops_rest: bool) -> None:
        self.planned = planned
        self.done = 0  #: micro-batches handed out, and not taken back
        self.samples = 0.0  #: samples in these
        self.is_over = False  #: ended early, by the strategy
        self._batches, self._boundary, self._drops_rest = batches, boundary, drops_rest
        self._last: Any = None

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self._last = batch
            self.done += 1
            self.samples += batch_size(batch)
            yield batch
            if self.done == self.planned or not self._batches.has_more:
                return
            after = self._boundary(self)
            if after is not After.GO_ON:
                self._end_early(after)
                return

    def newly_taken(self) -> int:
        """Batches taken since the last call, by the loop or by a strategy that drops them."""
        return self._batches.newly_taken()

    def take_back(self) -> None:
        """The last micro-batch was not accepted: it is computed again in the next round."""
        self.done -= 1
        self.samples -= batch_size(self._last)
        self._batches.give_back(self._last)

    def _end_early(self, after: After) -> None:
        self.is_over = True
        if after is After.AGAIN:
            self.take_back()
        if self._drops_rest:
            for _, _ in zip(range(self.planned - self.done), self._batches, strict=False):
                continue


def rounds_of(
    loader: Iterable[Any], microbatches: int, boundary: Boundary, drops_rest: bool = False
) -> Iterator[MicrobatchRound]:
    """Rounds of up to this many micro-batches; the next round starts with what one has left over."""
    if not isinstance(microbatches, int) or isinstance(microbatches, bool) or microbatches < 1:
        raise InvalidRules(f"microbatches={microbatches!r} must be a whole number, at least 1")
    batches = Batches(loader)
    while batches.has_more:
        yield MicrobatchRound(batches, microbatches, boundary, drops_rest)


def batch_size(batch: Any) -> int:
    """Samples in a batch: the length of the first tensor in it."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else 1
    if isinstance(batch, Mapping):
        return batch_size(next(iter(batch.values()), 1))
    if isinstance(batch, Sequence) and not isinstance(batch, str) and batch:
        return batch_size(batch[0])
    return 1
