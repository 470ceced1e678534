"""Samplers and streams that draw from one pool for all ranks: whoever is free takes the next batch, a slow rank fewer.

Owns what a loader sees of the pool. Who gets what is decided by the ledger; drawing happens in the main process, where
loaders iterate their samplers, however many workers they have.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.data import IterableDataset, Sampler, get_worker_info

from outpace.data.orders import Batches, Order, Samples, check_batch_size
from outpace.engines.draws import Course, Source
from outpace.engines.engine import Opened
from outpace.errors import InvalidRules, OutpaceError
from outpace.optimizer import DistributedOptimizer, opened_here
from outpace.protocol.pool import Range
from outpace.spec import is_whole

log = logging.getLogger("outpace")

ENDLESS = 2**40  #: batches: nobody knows how long a stream is before it ends

Item = TypeVar("Item")


class FromPool(Sampler[Item]):
    """Draws the items of an order, each once an epoch among all ranks.

    order: what an epoch consists of. batch: how many items make a batch. batches_per_step: how many batches make one
    call of `optimizer.step()`.
    """

    def __init__(self, order: Order, batch: int, batches_per_step: int, optimizer: DistributedOptimizer | None) -> None:
        if not is_whole(batches_per_step) or batches_per_step < 1:
            raise InvalidRules(f"batches_per_step={batches_per_step!r} must be a whole number, at least 1")
        self.order = order
        self._batch, self._batches_per_step, self._optimizer = batch, batches_per_step, optimizer
        self._opened: Opened | None = None
        self._pool = 0
        self._epoch = -1  # the latest that was begun
        self._asked: int | None = None  # the one that was set since
        self._course: Course | None = None
        self._left: dict[int, list[Range]] = {}  # epoch -> what a checkpoint has left of it

    @property
    def epoch(self) -> int:
        """The one that the next loop goes through, or that is under way. What the others are in, on a rank that was
        started again and has not begun to loop."""
        if self._asked is not None:
            return self._asked
        if self._epoch < 0 and (here := self._find()) is not None:
            return here.engine.draws.latest_of_next_pool()
        return max(0, self._epoch)

    def weight_of(self, item: Item) -> float:
        """What an item counts where contributions are weighed by their samples."""
        return float(len(item)) if isinstance(item, list) else 1.0

    def set_epoch(self, epoch: int) -> None:
        """Names the epoch that the next loop goes through. Without it, each loop goes through the next one."""
        if not is_whole(epoch) or epoch < 0:
            raise InvalidRules(f"set_epoch({epoch!r}): an epoch is a whole number, 0 or more")
        self._asked = epoch

    def __len__(self) -> int:
        """An even share of what one rank draws in an epoch: a faster rank draws more, a slower one fewer."""
        world = 1 if self._opened is None else self._opened.engine.world
        if self._opened is None and (here := self._find()) is not None:
            world = here.engine.world
        return -(-len(self.order.items(self.epoch)) // world)

    def __iter__(self) -> Iterator[Item]:
        if get_worker_info() is not None:
            raise OutpaceError(
                f"{type(self).__name__} was iterated in a worker of a DataLoader, where there is no optimizer to draw "
                "through. Give it to the loader as sampler= or batch_sampler=: those are iterated in the main process"
            )
        opened = self._bind()
        self._epoch, self._asked = self._next_epoch(), None
        source = self._source(self._epoch)
        course = self._course = opened.engine.draws.begin(source, self._batch, self._batches_per_step)
        self._warn_if_small(source)
        own = self.order.items(source.epoch)
        at_once = self._drawn_at_once(source, is_first=True)
        while shares := opened.drive(opened.engine.draws.next, course, at_once):
            at_once = self._drawn_at_once(source, is_first=False)
            for _, epoch, start, stop in shares:
                items = (own if epoch == source.epoch else self.order.items(epoch))[start:stop]
                opened.engine.draws.note_sizes(map(self.weight_of, items))
                yield from items
        self._check_same(source)

    def end(self) -> None:
        """There was nothing behind what was drawn last: this pass is over, and none of it is given back."""
        if self._course is not None:
            self._course.is_over = True

    def state_dict(self) -> dict[str, Any]:
        """What is left of this epoch, for all ranks together: any one's will do, for any number of ranks.

        Of a checkpoint, call it after `optimizer.synchronize()`. Nobody is asked, and what a loader has prefetched
        counts as not trained.
        """
        left = self._left
        if self._opened is not None and self._pool >= 0:
            left = self._opened.engine.draws.left(self._pool)
        return {"format": 1, "epoch": self.epoch, "order": self.order.describe(), "left": left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on in the middle of an epoch. To be called on all ranks, with the same state, before the next loop."""
        if state["order"] != self.order.describe():
            raise InvalidRules(
                f"this checkpoint is of other data: {state['order']} there, {self.order.describe()} here. An epoch can "
                "be gone on with only in the order it was begun in; leave the sampler's state out to begin a new one"
            )
        self._asked = state["epoch"]
        self._left = {int(epoch): [tuple(part) for part in left] for epoch, left in state["left"].items()}
        self._pool = -1

    # -- details ---------------------------------------------------------------------------------------------------

    def _drawn_at_once(self, source: Source, is_first: bool) -> int:
        """How many items."""
        return self._batch

    def _find(self) -> Opened | None:
        try:
            return opened_here(self._optimizer, type(self).__name__)
        except OutpaceError:
            return None

    def _bind(self) -> Opened:
        """Finds the ranks to share with. Those of another optimizer than before begin anew."""
        opened = opened_here(self._optimizer, type(self).__name__)
        if opened is not self._opened:
            self._opened, self._pool, self._epoch, self._course = opened, -1, -1, None
        if self._pool < 0:
            self._pool = opened.engine.draws.new_pool()
            for epoch, left in sorted(self._left.items()):
                source = self._source(epoch)
                opened.engine.draws.skip(source, _between(left, source.total))
            self._left = {}
        return opened

    def _next_epoch(self) -> int:
        is_drawn = self._course is not None and self._course.is_over
        if self._asked is None:
            if self._epoch == 0 and is_drawn:
                log.info("set_epoch() was not called: each loop goes through the next epoch, in an order of its own")
            return self._epoch + 1 if is_drawn or self._epoch < 0 else self._epoch
        if is_drawn and self._asked <= self._epoch:
            raise InvalidRules(
                f"set_epoch({self._asked}): this rank has drawn epoch {self._epoch} to its end, and nothing is left of "
                "it. Call set_epoch(epoch) with a number that grows from loop to loop, or leave it out: epochs are "
                "counted then"
            )
        return self._asked

    def _source(self, epoch: int) -> Source:
        return Source(self._pool, epoch, len(self.order.items(epoch)), self.order.digest)

    def _warn_if_small(self, source: Source) -> None:
        assert self._opened is not None
        rank, world = self._opened.engine.rank, self._opened.engine.world
        batches = -(-source.total // self._batch)
        if rank == 0 and batches < world:
            log.warning(
                "an epoch has fewer batches (%d) than there are ranks (%d): in each epoch, some ranks get nothing to "
                "train on. Make batches smaller, or use fewer ranks",
                *(batches, world),
            )

    def _check_same(self, source: Source) -> None:
        assert self._opened is not None
        engine = self._opened.engine
        theirs = engine.ledger.pool.differs(*source)
        if theirs is None:
            return
        if theirs.total != source.total:
            what = f"its epoch has {source.total} items, and theirs {theirs.total}"
        else:
            what = f"there are as many items, but not in the same order. Here: {self.order.describe()}"
        raise OutpaceError(
            f"[rank {engine.rank}] the other ranks draw from other data: {what}. Nothing was drawn from it. Give the "
            "same data, seed, batch size and weights to the samplers of all ranks, and loop over them in the same order"
        )


class _OfOneSet(FromPool[Item]):
    """Each sample of a set once an epoch, or samples of it drawn by their weights."""

    def __init__(
        self,
        data: Sized | int,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        weights: Sequence[float] | Tensor | None = None,
        length: int | None = None,
        batches_per_step: int = 1,
        optimizer: DistributedOptimizer | None = None,
    ) -> None:
        check_batch_size(batch_size)
        samples = Samples(data, shuffle, seed, weights, length, batch_size if drop_last else 1)
        super().__init__(*self._cut(samples, batch_size), batches_per_step, optimizer)

    @staticmethod
    @abstractmethod
    def _cut(samples: Samples, batch_size: int) -> tuple[Order, int]:
        """What is drawn, and how many of these make a batch."""


class SharedSampler(_OfOneSet[int]):
    """What `DistributedSampler` is, with one pool for all ranks: whoever is free draws the next batch.

        sampler = outpace.data.SharedSampler(dataset, batch_size=32)
        loader = DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=4)
        for x, y in loader: ...

    In an epoch each sample is drawn once, in the order of `DistributedSampler` with the same seed. A rank's loop ends
    when the pool is empty, and waits for nobody. What a rank had drawn and not contributed when it died is drawn by
    others. Needs a `DistributedOptimizer` in this process when it is iterated; never waits for another rank.

    data: the set, or how many samples it has. batch_size: the loader's: so many samples are drawn at once.
    drop_last: leaves out the samples that make no whole batch.
    weights: draws `length` samples an epoch with replacement (as many as there are, unless told otherwise).
    batches_per_step: mini-batches that make one `optimizer.step()`, where a plain loop accumulates gradients. A step
        covers so many of the batches drawn, in their order: those are not drawn again when their rank dies.
    optimizer: through which to draw; needed only where a process has several.
    """

    @staticmethod
    def _cut(samples: Samples, batch_size: int) -> tuple[Order, int]:
        return samples, batch_size


class SharedBatchSampler(_OfOneSet[list[int]]):
    """The same in whole batches, for a loader's `batch_sampler=`: each batch is the same set of samples, whoever draws
    it. The options are those of `SharedSampler`."""

    @staticmethod
    def _cut(samples: Samples, batch_size: int) -> tuple[Order, int]:
        return Batches(samples, batch_size), 1


class SpeedShares(SharedBatchSampler):
    """Each rank owns a part of the epoch that follows its speed in the one before: a `DistributedSampler` whose shares
    move between epochs. The options are those of `SharedSampler`.

    In the first epoch the shares are even. A rank draws nine tenths of its share at once when it begins, and what is
    left over in the end goes to whoever is free. Speed is what each rank measures of its own computing.
    """

    OWNED = 0.9  #: of a rank's share

    def _drawn_at_once(self, source: Source, is_first: bool) -> int:
        assert self._opened is not None
        engine = self._opened.engine
        if not is_first:
            return 1
        speeds = engine.draws.speeds()
        mean = sum(speeds.values()) / len(speeds) if speeds else 1.0
        unfinished = [member.rank for member in engine.ledger.members.unfinished()]
        together = sum(speeds.get(rank, mean) for rank in unfinished)
        return max(1, int(self.OWNED * source.total * speeds.get(engine.rank, mean) / together))


def _between(left: list[Range], total: int) -> Iterator[Range]:
    """What is not left."""
    start = 0
    for begin, end in left:
        if begin > start:
            yield start, begin
        start = end
    if start < total:
        yield start, total


# -- streams ----------------------------------------------------------------------------------------------------------


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
