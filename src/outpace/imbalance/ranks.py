"""Models of who is slow: nobody, some random ranks, always the same ones. Owns the choice of the ranks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from outpace.imbalance.options import check_count, check_fits, check_least, check_seed


@dataclass(frozen=True)
class Balanced:
    """Nobody is slower: what is left is the machine's own noise."""

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        """Always `base_s`."""
        return base_s


@dataclass(frozen=True)
class RandomRanks:
    """At every step, `k` random ranks are slower by `delay_ms`.

    The injection that eager-SGD was measured with (PPoPP 2020, section 7.2): 1 of 8 ranks by 200, 300 or 400 ms, 4 of
    64 ranks by 300 or 460 ms. Mean delay of a rank: `delay_ms` times k / world. No rank is ever slower than that.

    >>> sorted(RandomRanks(k=1, delay_ms=200).compute_s(rank, world=4, step=0, base_s=0.5) for rank in range(4))
    [0.5, 0.5, 0.5, 0.7]
    """

    k: int = 1
    delay_ms: float = 200.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_count(self.k)
        check_least(0, delay_ms=self.delay_ms)
        check_seed(self.seed)

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        """`delay_ms` more for the `k` ranks that were drawn for this step."""
        check_fits(self.k, world)
        return base_s + self.delay_ms / 1000 if rank in _chosen(self.seed, step, world, self.k) else base_s


@lru_cache(maxsize=1024)  # all ranks ask for the same step, at about the same time
def _chosen(seed: int, step: int, world: int, k: int) -> frozenset[int]:
    return frozenset(random.Random(f"{seed}/{step}").sample(range(world), k))


@dataclass(frozen=True)
class Skew:
    """At every step, rank r is slower by `first_ms` + r * `step_ms`.

    The micro-benchmark of eager-SGD (PPoPP 2020, section 7.1): rank r sleeps r ms. Mean delay over the ranks:
    `first_ms` + (world - 1) / 2 * `step_ms`; the last rank has the largest.

    >>> [round(Skew(step_ms=10).compute_s(rank, world=4, step=0, base_s=0.1), 3) for rank in range(4)]
    [0.1, 0.11, 0.12, 0.13]
    """

    step_ms: float = 1.0
    first_ms: float = 0.0

    def __post_init__(self) -> None:
        check_least(0, step_ms=self.step_ms, first_ms=self.first_ms)

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        """The same at every step."""
        return base_s + (self.first_ms + rank * self.step_ms) / 1000


@dataclass(frozen=True)
class ShiftingSkew:
    """All ranks are slower, evenly from `min_ms` to `max_ms`, and each has another place at every step.

    The CIFAR-10 experiment of eager-SGD (PPoPP 2020, section 7.2): 50 to 400 ms over 8 ranks, shifted by one rank at
    each step. Mean delay: half of `min_ms` + `max_ms`, at every step and for every rank. A rank that is alone has
    `min_ms`.

    >>> [round(ShiftingSkew().compute_s(rank, world=8, step=1, base_s=0), 2) for rank in range(8)]
    [0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.05]
    """

    min_ms: float = 50.0
    max_ms: float = 400.0

    def __post_init__(self) -> None:
        check_least(0, min_ms=self.min_ms)
        check_least(self.min_ms, max_ms=self.max_ms)

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        """The place of a rank moves up by one at each step."""
        share = (rank + step) % world / max(1, world - 1)
        return base_s + (self.min_ms + (self.max_ms - self.min_ms) * share) / 1000


@dataclass(frozen=True)
class SlowRanks:
    """The first `k` ranks are slower by `factor`, at every step: older machines, or shared ones.

    Mean over the ranks: 1 + (`factor` - 1) * k / world times the undisturbed time. No rank is ever slower than that.

    >>> [SlowRanks(k=2, factor=3).compute_s(rank, world=4, step=0, base_s=0.5) for rank in range(4)]
    [1.5, 1.5, 0.5, 0.5]
    """

    k: int = 1
    factor: float = 2.0

    def __post_init__(self) -> None:
        check_count(self.k)
        check_least(1, factor=self.factor)

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        """The same at every step."""
        check_fits(self.k, world)
        return base_s * self.factor if rank < self.k else base_s
