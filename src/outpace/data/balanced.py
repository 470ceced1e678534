"""Batches of equal cost from samples of unequal length: then no rank has more to compute than another.

Owns how they are cut. Where samples are padded to the longest of their batch, they are sorted within a window of the
epoch's permutation, each second window the other way round, and cut one after the other at the budget: a batch is
`samples x cost(longest)`. The window is the smallest that keeps the padding within its bound, so that batches are as
random as that allows; then the batches themselves are shuffled. Where nothing is padded, the permutation itself is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from outpace.data.orders import Order, check_batch_size
from outpace.data.shared import FromPool
from outpace.errors import InvalidRules
from outpace.job.environment import whereami
from outpace.optimizer import DistributedOptimizer
from outpace.spec import is_number, is_whole
from outpace.workloads import Score, Workload

Lengths = Sequence[float] | NDArray[Any] | Tensor
Cost = Callable[[NDArray[np.float64]], NDArray[np.float64]]  #: of samples of these lengths, each on its own

SPLIT, SHARED = DATA = ("split", "shared")
PADDING = 0.1  #: share of a batch that may be padding
FIRST_WINDOW = 4  #: batches


class BalancedOrder(Order):
    def __init__(
        self,
        lengths: Lengths,
        batch_size: int,
        cost: Cost | None,
        padding: float | None,
        shuffle: bool,
        seed: int,
        most: int | None,
    ) -> None:
        check_batch_size(batch_size)
        self.lengths = _checked(lengths)
        self._costs = self.lengths if cost is None else np.asarray(cost(self.lengths), dtype=np.float64)
        if self._costs.shape != self.lengths.shape or not bool((self._costs > 0).all()):
            raise InvalidRules(
                f"cost() must give a number greater than 0 for each of the {len(self.lengths)} lengths; it gave "
                f"{self._costs.shape} numbers, the least of them {self._costs.min(initial=0):g}"
            )
        if padding is not None and not (is_number(padding) and 0 < padding < 1):
            raise InvalidRules(f"padding={padding!r} must be a share between 0 and 1, or None if nothing is padded")
        if not is_whole(seed):
            raise InvalidRules(f"seed={seed!r} must be a whole number, the same on all ranks")
        self._size, self._padding, self._shuffle, self._seed = batch_size, padding, shuffle, seed
        self._most = most if most is not None else len(self.lengths)
        self.budget = float(self._costs.mean()) * batch_size  #: of a batch
        self._latest: tuple[int, list[list[int]]] = -1, []
        self.window = len(self.lengths) if padding is None else self._find_window()  #: samples that are sorted together

    def items(self, epoch: int) -> list[list[int]]:
        if self._latest[0] != epoch:
            self._latest = epoch, self._batches(epoch)
        return self._latest[1]

    def describe(self) -> str:
        data = crc32(self._costs.tobytes(), crc32(self.lengths.tobytes()))
        how = f"{self._size} in the mean, padding={self._padding}, at most {self._most}"
        return f"{len(self.lengths)} lengths ({data:08x}), {how}, shuffle={self._shuffle}, seed={self._seed}"

    def cost_of(self, batch: Sequence[int]) -> float:
        costs = self._costs[list(batch)]
        return float(costs.sum() if self._padding is None else costs.max() * len(costs))

    def padded_share(self, epoch: int) -> float:
        """Of what is computed in an epoch, the share that is padding."""
        batches = self.items(epoch)
        padded = sum(self.lengths[batch].max() * len(batch) for batch in batches)
        return 1 - float(self.lengths.sum()) / float(padded)

    def _find_window(self) -> int:
        """The smallest one that keeps the padding within its bound. The first epoch stands for all."""
        assert self._padding is not None
        window = FIRST_WINDOW * self._size
        while window < len(self.lengths):
            self.window, self._latest = window, (-1, [])
            if self.padded_share(0) <= self._padding:
                return window
            window *= 2
        return len(self.lengths)

    def _batches(self, epoch: int) -> list[list[int]]:
        draws = np.random.default_rng([self._seed, epoch])
        order = draws.permutation(len(self.lengths)) if self._shuffle else np.arange(len(self.lengths))
        if self._padding is not None:
            order = np.concatenate(list(self._sorted(order)))
        batches = list(self._cut(order))
        return [batches[place] for place in draws.permutation(len(batches))] if self._shuffle else batches

    def _sorted(self, order: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        for number, start in enumerate(range(0, len(order), self.window)):
            part = order[start : start + self.window]
            by_length = part[np.argsort(self._costs[part], kind="stable")]
            yield by_length[::-1] if number % 2 else by_length  # so that neighbours at a border are of like length

    def _cut(self, order: NDArray[np.int64]) -> Iterator[list[int]]:
        """At the budget: a batch ends where another sample would take it further away from it."""
        batch: list[int] = []
        spent = largest = 0.0
        for sample, cost in zip(order.tolist(), self._costs[order].tolist(), strict=True):
            longest = max(largest, cost)
            spent_then = spent + cost if self._padding is None else longest * (len(batch) + 1)
            if batch and (abs(spent_then - self.budget) > abs(spent - self.budget) or len(batch) == self._most):
                yield batch
                batch, longest, spent_then = [], cost, cost
            batch.append(sample)
            largest, spent = longest, spent_then
        yield batch


class LengthBalancedBatches(FromPool[list[int]]):
    """Batches of equal cost, for a loader's `batch_sampler=`: many short samples, or a few long ones.

        lengths = [len(text) for text in texts]
        batches = outpace.data.LengthBalancedBatches(lengths, batch_size=32)
        loader = DataLoader(dataset, batch_sampler=batches, collate_fn=pad)

    lengths: of each sample: tokens, frames. batch_size: samples in the mean; the cost of a batch is that of so many
        samples of mean cost. cost: what lengths cost, for a numpy array of them: `lambda n: n**2`; itself if None.
    padding: the largest share of a batch that may be padding, in the mean; the smaller it is, the more alike are the
        lengths in a batch. None if samples are not padded: batches are random then.
    most: samples of a batch, for memory.
    data: "shared" draws from the pool of all ranks, as `SharedBatchSampler`; "split" gives each rank as many batches as
        the others, needs no `DistributedOptimizer`, and works with DDP, too.
    weigh: what `step()` counts as samples where the strategy has `normalise=samples`: "tokens" (the lengths added up:
        right for a loss that is a mean over tokens), or "samples". With shared data nothing else need be said.
    dataset: only to check that it has as many samples as there are lengths.
    """

    def __init__(
        self,
        lengths: Lengths,
        batch_size: int,
        *,
        cost: Cost | None = None,
        padding: float | None = PADDING,
        shuffle: bool = True,
        seed: int = 0,
        most: int | None = None,
        data: str = SHARED,
        weigh: str = "tokens",
        dataset: Sized | None = None,
        batches_per_step: int = 1,
        optimizer: DistributedOptimizer | None = None,
    ) -> None:
        if data not in DATA:
            raise InvalidRules(f'data={data!r} must be "{SHARED}" (one pool for all ranks) or "{SPLIT}"')
        if weigh not in ("tokens", "samples"):
            raise InvalidRules(f'weigh={weigh!r} must be "tokens" or "samples"')
        if most is not None and (not is_whole(most) or most < 1):
            raise InvalidRules(f"most={most!r} must be a whole number of samples, at least 1")
        if dataset is not None and len(dataset) != len(lengths):
            raise InvalidRules(
                f"{len(lengths)} lengths for a set of {len(dataset)} samples: there must be one for each"
            )
        self.balanced = BalancedOrder(lengths, batch_size, cost, padding, shuffle, seed, most)
        self._data, self._weigh = data, weigh
        super().__init__(self.balanced, 1, batches_per_step, optimizer)

    def weight_of(self, batch: Sequence[int]) -> float:
        """What a batch counts, for `optimizer.step(samples=...)`."""
        return float(len(batch)) if self._weigh == "samples" else float(self.balanced.lengths[list(batch)].sum())

    def __len__(self) -> int:
        return len(self._own(self.epoch)) if self._data == SPLIT else super().__len__()

    def __iter__(self) -> Iterator[list[int]]:
        if self._data == SHARED:
            yield from super().__iter__()
            return
        self._epoch = self._epoch + 1 if self._asked is None else self._asked
        self._asked = None
        yield from self._own(self._epoch)

    def _own(self, epoch: int) -> list[list[int]]:
        """This rank's: as many as any other's, so that some batches come twice if the number does not divide."""
        place, batches = whereami(), self.order.items(epoch)
        each = -(-len(batches) // place.world)
        return [batches[(place.rank + turn * place.world) % len(batches)] for turn in range(each)]


def _checked(lengths: Lengths) -> NDArray[np.float64]:
    try:
        found = np.asarray(lengths, dtype=np.float64)
    except (TypeError, ValueError) as error:  # also lists of different lengths: the samples themselves
        raise InvalidRules(f"lengths must be a list of one number for each sample: {error}") from error
    if found.ndim != 1 or not len(found):
        raise InvalidRules(f"lengths must be a list of one number for each sample, not of shape {found.shape}")
    if not bool((found > 0).all()) or not bool(np.isfinite(found).all()):
        at = int(np.argmin(np.where(np.isfinite(found), found, -1)))
        raise InvalidRules(f"lengths must be greater than 0: that of sample {at} is {found[at]:g}")
    return found


# -- for built-in workloads -------------------------------------------------------------------------------------------


class EqualCosts(Workload):
    """A built-in workload in batches of equal cost: many short samples in one, a few long ones in another.

    For one world alone.
    """

    def __init__(self, inner: Workload, world: int, name: str, padding: float | None = PADDING) -> None:
        if inner.lengths is None:
            raise InvalidRules(
                f"the samples of {name} all cost the same: there is nothing to balance. Of the built-in workloads, "
                "sequences and code have samples of unequal length"
            )
        inner.batch(0, 0, world)  # says so if the world does not fit
        self._inner, self._mean_length = inner, float(inner.lengths.double().mean())
        each = inner.mini_batch // world
        self.order = BalancedOrder(inner.lengths, each, None, padding, shuffle=True, seed=inner.seed, most=None)
        self._epochs: list[list[list[int]]] = []  # the batches of each, so far as they were asked for
        self.metric, self.race_epochs = inner.metric, inner.race_epochs
        self.steps_per_epoch = round(len(self._batches(0)) / world)

    def model(self) -> nn.Module:
        return self._inner.model()

    def optimizer(self, model: nn.Module) -> Optimizer:
        return self._inner.optimizer(model)

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        number, epoch = step * world + rank, 0
        while number >= len(self._batches(epoch)):
            number -= len(self._batches(epoch))
            epoch += 1
        return self._inner.samples(torch.tensor(self._batches(epoch)[number]))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._inner.loss(outputs, targets)

    def score(self, model: nn.Module) -> Score:
        return self._inner.score(model)

    def cost(self, inputs: Tensor, outputs: Tensor) -> float:
        """With its padding, which is computed, too."""
        return inputs.shape[1] / self._mean_length

    def size(self, samples: int, world: int) -> float:
        return samples * world / self._inner.mini_batch

    def _batches(self, epoch: int) -> list[list[int]]:
        while len(self._epochs) <= epoch:
            self._epochs.append(self.order.items(len(self._epochs)))
        return self._epochs[epoch]
