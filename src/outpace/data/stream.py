"""A stream that all ranks read, each computing only the batches it draws. Owns where a rank stands in the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from outpace.data.orders import Order, check_batch_size
from outpace.data.shared import FromPool
from outpace.errors import OutpaceError
from outpace.optimizer import DistributedOptimizer

ENDLESS = 2**40  #: batches: nobody knows how long a stream is before it ends


class _Numbers(Order):
    """Batches by their place in the stream."""

    def __init__(self, batch_size: int) -> None:
        self._size = batch_size

    def items(self, epoch: int) -> Sequence[tuple[int, int]]:
        return _Places(epoch)

    def describe(self) -> str:
        return f"a stream in batches of {self._size}"


class _Places(Sequence[tuple[int, int]]):
    """(epoch, number) of each batch: what is left of an epoch may be drawn in the next."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, place: Any) -> Any:
        numbers = range(ENDLESS)[place]
        return [(self._epoch, n) for n in numbers] if isinstance(numbers, range) else (self._epoch, numbers)


class SharedStream(IterableDataset[list[Any]]):
    """An iterable set from which whoever is free takes the next batch, as a list of samples.

        stream = outpace.data.SharedStream(lambda epoch: open_shards(epoch), batch_size=32)
        for batch in DataLoader(stream, batch_size=None, collate_fn=pad): ...

    All ranks read the same stream and skip what others have drawn, so that reading must cost little beside computing.
    It is read in the main process (`num_workers=0`): that is where ranks draw.

    source: called with the epoch; returns the samples in the same order on every rank, and again if called again.
    batches_per_step, optimizer: as in `SharedSampler`.
    """

    def __init__(
        self,
        source: Callable[[int], Iterable[Any]],
        batch_size: int,
        *,
        batches_per_step: int = 1,
        optimizer: DistributedOptimizer | None = None,
    ) -> None:
        check_batch_size(batch_size)
        self._source, self._size = source, batch_size
        self._numbers = FromPool[tuple[int, int]](_Numbers(batch_size), 1, batches_per_step, optimizer)
        self.set_epoch = self._numbers.set_epoch

    def __iter__(self) -> Iterator[list[Any]]:
        if get_worker_info() is not None:
            raise OutpaceError(
                "SharedStream was iterated in a worker of a DataLoader, where there is no optimizer to draw through. "
                "Use num_workers=0, or give the stream's files to SharedSampler as a set whose samples are files"
            )
        at, reading, opened = 0, iter(()), -1
        for epoch, number in self._numbers:
            if opened != epoch or number < at:  # what a rank that died had drawn lies behind, or in an earlier epoch
                at, reading, opened = 0, iter(self._source(epoch)), epoch
            skipped = (number - at) * self._size
            batch = list(islice(reading, skipped, skipped + self._size))
            at = number + 1
            if batch:
                yield batch
            elif epoch == self._numbers.epoch:
                self._numbers.end()
                return
