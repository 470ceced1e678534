"""The delay models. Owns their draws; each is a pure function of its options, the step and the rank."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from outpace.errors import InvalidRules


@dataclass(frozen=True)
class Balanced:
    """No delay at all: what is left is the machine's own noise."""

    def delay_s(self, rank: int, world: int, step: int) -> float:
        """Always 0."""
        return 0.0


@dataclass(frozen=True)
class RandomRanks:
    """At every step, `k` random ranks are slower by `delay_ms`.

    This is what eager-SGD was measured with (PPoPP 2020, section 7.2): 1 of 8 ranks by 200, 300 or 400 ms.

    >>> sorted(RandomRanks(k=1, delay_ms=200).delay_s(rank, world=4, step=0) for rank in range(4))
    [0.0, 0.0, 0.0, 0.2]
    """

    k: int = 1
    delay_ms: float = 200.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not _is_whole(self.k) or self.k < 0:
            raise InvalidRules(f"k={self.k!r} must be a whole number of ranks, 0 or more")
        number = isinstance(self.delay_ms, (int, float)) and not isinstance(self.delay_ms, bool)
        if not number or not 0 <= self.delay_ms < math.inf:
            raise InvalidRules(f"delay_ms={self.delay_ms!r} must be a number of milliseconds, 0 or more")
        if not _is_whole(self.seed):
            raise InvalidRules(f"seed={self.seed!r} must be a whole number")

    def delay_s(self, rank: int, world: int, step: int) -> float:
        """`delay_ms` for the `k` ranks that were drawn for this step, 0 for the others."""
        if self.k > world:
            raise InvalidRules(f"k={self.k} ranks cannot be delayed in a world of {world}; use k={world} or less")
        # A generator of its own for each step: training draws from the global ones, and ranks reach steps at
        # different times, so a shared stream would give every rank another draw.
        chosen = random.Random(f"{self.seed}/{step}").sample(range(world), self.k)
        return self.delay_ms / 1000 if rank in chosen else 0.0


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
