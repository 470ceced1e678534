"""What is simulated: how many ranks, how fast they are, and what links them. Owns the checks of its own options."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from outpace.engines.virtual.network import Network, network
from outpace.engines.virtual.world import Speed
from outpace.errors import InvalidRules
from outpace.imbalance import Imbalance, imbalance
from outpace.spec import is_number, is_whole

MOST_RANKS, MOST_STEPS = 65_536, 10**9  #: a step takes some 30 microseconds
SPLIT, SHARED, BALANCED, BOTH = DATA = ("split", "shared", "balanced", "both")  #: how work is divided
MEASURED = 256  #: steps of a rank that its mean is taken of


@dataclass(frozen=True)
class Scenario:
    """A cluster, and the computing it does.

    steps: of each rank, on average.
    data: "split" gives every rank exactly so many steps, as DistributedSampler does: a run lasts until the slowest has
        made its own. "shared" is one pool of `ranks * steps`, of which whoever is free takes the next: a slow rank
        makes fewer. "balanced" is split, with batches of equal cost: all steps of a rank take as long as they do in the
        mean, if it is the data that make them differ. "both" is one pool of such batches.
    compute_ms: what a step takes undisturbed; `imbalance` says what happens to it.
    microbatches: of each step, for strategies that may end a round between two of them.
    payload_mb: size of the gradients. network: a name with options, or an object. apply_ms: the optimizer's step.
    """

    ranks: int = 8
    steps: int = 200
    compute_ms: float = 100.0
    imbalance: str | Imbalance = "none"
    payload_mb: float = 25.0
    network: str | Network = "ethernet"
    apply_ms: float = 0.0
    data: str = SPLIT
    microbatches: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("ranks", "steps", "microbatches"):
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise InvalidRules(f"{name}={value!r} must be a whole number, at least 1")
        if self.ranks > MOST_RANKS or self.ranks * self.steps > MOST_STEPS:
            raise InvalidRules(
                f"{self.ranks:,} ranks x {self.steps:,} steps are more than outpace simulates, {MOST_RANKS:,} ranks "
                f"and {MOST_STEPS:,} steps in all (some hours); make one of them smaller"
            )
        for name in ("compute_ms", "payload_mb", "apply_ms"):
            value = getattr(self, name)
            if not (is_number(value) and 0 <= value < math.inf):
                raise InvalidRules(f"{name}={value!r} must be a number, 0 or more")
        if self.data not in DATA:
            raise InvalidRules(
                f"data={self.data!r} must be {SPLIT} (each rank has its own), {SHARED} (one pool), {BALANCED} (batches "
                f"of equal cost) or {BOTH}"
            )
        self.links.hosts(self.ranks)  # a network or an imbalance that does not fit this world says so
        self.compute_ns(0)(0)

    @property
    def is_split(self) -> bool:
        """Whether every rank has work of its own, as much as any other."""
        return self.data in (SPLIT, BALANCED)

    @property
    def is_balanced(self) -> bool:
        """Whether batches cost the same."""
        return self.data in (BALANCED, BOTH)

    @cached_property
    def links(self) -> Network:
        return network(self.network)

    @cached_property
    def model(self) -> Imbalance:
        return imbalance(self.imbalance, self.seed)

    @property
    def payload_bytes(self) -> int:
        return round(self.payload_mb * 1e6)

    def compute_ns(self, rank: int) -> Callable[[int], int]:
        model, world, base_s = self.model, self.ranks, self.compute_ms / 1e3
        if not self.is_balanced:
            return lambda step: round(model.compute_s(rank, world, step, base_s) * 1e9)
        if rank not in self._means_ns:
            steps = range(min(self.steps, MEASURED))
            self._means_ns[rank] = round(fmean(model.compute_s(rank, world, step, base_s) for step in steps) * 1e9)
        mean_ns = self._means_ns[rank]
        return lambda step: mean_ns

    @cached_property
    def _means_ns(self) -> dict[int, int]:
        return {}

    def pace(self, rank: int) -> Speed:
        return Speed(self.compute_ns(rank), round(self.apply_ms * 1e6))


class WorkLeft:
    """The micro-batches that are left: one pool for all ranks, or one for each. A step has `parts` of them."""

    def __init__(self, scenario: Scenario, parts: int) -> None:
        self.parts = parts
        self.taken = [0] * scenario.ranks  #: by each rank
        self.left = self.total = scenario.ranks * scenario.steps * parts
        self._each = scenario.steps * parts if scenario.is_split else self.left

    @property
    def taken_share(self) -> float:
        return 1 - self.left / self.total

    def is_left_for(self, rank: int) -> bool:
        return self.left > 0 and self.taken[rank] < self._each

    def take(self, rank: int) -> bool:
        if not self.left or self.taken[rank] == self._each:
            return False
        self.taken[rank] += 1
        self.left -= 1
        return True

    def give_back(self, rank: int) -> None:
        """The last one this rank took came too late: it is computed again."""
        self.taken[rank] -= 1
        self.left += 1
