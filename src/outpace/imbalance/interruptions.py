"""Models of what comes over a rank from outside and goes again. Owns when it begins and when it ends."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

from outpace.imbalance.draws import uniform
from outpace.imbalance.noise import Noise
from outpace.imbalance.options import check_least, check_seed


@dataclass(frozen=True)
class Pauses(Noise):
    """Once in `every` steps on average, a rank stands still for `pause_ms`.

    Garbage collection, checkpoints, pre-emption. Mean delay: `pause_ms` / `every`. Every delay is 0 or `pause_ms`; the
    steps between two pauses are geometrically distributed.
    """

    every: float = 100.0
    pause_ms: float = 2000.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(1, every=self.every)
        check_least(0, pause_ms=self.pause_ms)
        check_seed(self.seed)

    def delay_ms(self, rank: int, step: int) -> float:
        """`pause_ms` or 0."""
        return self.pause_ms if uniform(self.seed, rank, step) * self.every < 1 else 0.0


@dataclass(frozen=True)
class Bursts:
    """Each rank is now and then slower by `factor` for a while: the noise of a cloud.

    A Markov chain per rank. Bursts last `burst_steps` on average and the calm between them `calm_steps`, both
    geometrically distributed. Mean: 1 + (`factor` - 1) * `burst_steps` / (`burst_steps` + `calm_steps`) times the
    undisturbed time, from the first step on; never more than `factor` times.

    What was drawn for a rank is kept, two numbers for each burst. Asking for a step draws all bursts before it.
    """

    factor: float = 3.0
    burst_steps: float = 10.0
    calm_steps: float = 90.0
    seed: int = 0
    #: for each rank, the step at which each phase ended; a phase with an even number of ends before it is a burst
    _ends: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_least(1, factor=self.factor, burst_steps=self.burst_steps, calm_steps=self.calm_steps)
        check_seed(self.seed)

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        """`factor` times `base_s` in a burst."""
        ends = self._ends.get(rank)
        if ends is None:
            ends = self._ends[rank] = [0, 0] if self._begins_in_burst(rank) else [0]
        while ends[-1] <= step:
            ends.append(ends[-1] + self._phase_steps(rank, len(ends)))
        return base_s * self.factor if bisect_right(ends, step) % 2 == 0 else base_s

    def _begins_in_burst(self, rank: int) -> bool:
        return uniform(self.seed, rank, 0) * (self.burst_steps + self.calm_steps) < self.burst_steps

    def _phase_steps(self, rank: int, phase: int) -> int:
        """Geometrically distributed: without memory, so the first phase may have begun before the first step."""
        mean = self.burst_steps if phase % 2 == 0 else self.calm_steps
        return 1 + int(math.log(uniform(self.seed, rank, phase)) / math.log1p(-1 / mean)) if mean > 1 else 1
