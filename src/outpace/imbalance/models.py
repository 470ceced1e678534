"""Models of who is slow, when, and by how much. A model knows neither clocks nor processes.

What an imbalance is and the checks of its options; chosen ranks, noise on every step, passing interruptions; and whole
workloads whose work differs by nature, with the published distributions. Those replace `base_s`, and so does what was
recorded.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from itertools import count
from typing import Any, Protocol

from outpace.errors import InvalidRules
from outpace.observe.figures import steady
from outpace.observe.reader import read_trace
from outpace.observe.schema import Trace
from outpace.randomness import STANDARD_NORMAL, normal, uniform
from outpace.spec import is_number, is_whole

APART = 17  #: steps by which a stand-in is ahead of the rank whose times it repeats, or of the next stand-in


class Imbalance(Protocol):
    """How long every rank computes at every step.

    A pure function: the same arguments give the same answer, in any order and on any rank, so that ranks need not tell
    each other.
    """

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        """Seconds this rank computes at this step of its own, where it would take `base_s` undisturbed; never negative.

        Steps count from 0. Raises `InvalidRules` in a world that the model does not fit.
        """


class Checked:
    """A dataclass whose options are checked when it is made: each says in its default what it may be."""

    def __post_init__(self) -> None:
        for option in fields(self):  # type: ignore[arg-type]
            if "check" in option.metadata:
                option.metadata["check"](option.name, getattr(self, option.name))


def at_least(least: float, default: float) -> Any:
    return field(default=default, metadata={"check": partial(check_least, least)})


def above(bound: float, default: float) -> Any:
    return field(default=default, metadata={"check": partial(_check_above, bound)})


def ranks(default: int) -> Any:
    return field(default=default, metadata={"check": _check_ranks})


def seed() -> Any:
    return field(default=0, metadata={"check": _check_seed})


def check_least(least: float, name: str, value: object) -> None:
    if not (is_number(value) and least <= value < math.inf):
        raise InvalidRules(f"{name}={value!r} must be a finite number, {least:g} or more")


def _check_above(bound: float, name: str, value: object) -> None:
    if not (is_number(value) and bound < value < math.inf):
        raise InvalidRules(f"{name}={value!r} must be a finite number above {bound:g}")


def _check_ranks(name: str, value: object) -> None:
    if not is_whole(value) or value < 0:
        raise InvalidRules(f"{name}={value!r} must be a whole number of ranks, 0 or more")


def _check_seed(name: str, value: object) -> None:
    if not is_whole(value):
        raise InvalidRules(f"{name}={value!r} must be a whole number")


def check_fits(k: int, world: int) -> None:
    if k > world:
        raise InvalidRules(f"k={k} ranks cannot be delayed in a world of {world}; use k={world} or less")


@dataclass(frozen=True)
class Balanced:
    """Nobody is slower: what is left is the machine's own noise."""

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        return base_s


@dataclass(frozen=True)
class RandomRanks(Checked):
    """At every step, `k` random ranks are slower by `delay_ms`.

    The injection that eager-SGD was measured with (PPoPP 2020, section 7.2): 1 of 8 ranks by 200, 300 or 400 ms, 4 of
    64 ranks by 300 or 460 ms. Mean delay of a rank: `delay_ms` times k / world. No rank is ever slower than that.

    >>> sorted(RandomRanks(k=1, delay_ms=200).compute_s(rank, world=4, step=0, base_s=0.5) for rank in range(4))
    [0.5, 0.5, 0.5, 0.7]
    """

    k: int = ranks(1)
    delay_ms: float = at_least(0, 200.0)
    seed: int = seed()

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        check_fits(self.k, world)
        return base_s + self.delay_ms / 1000 if rank in _chosen(self.seed, step, world, self.k) else base_s


@lru_cache(maxsize=1024)  # all ranks ask for the same step, at about the same time
def _chosen(seed: int, step: int, world: int, k: int) -> frozenset[int]:
    return frozenset(random.Random(f"{seed}/{step}").sample(range(world), k))


@dataclass(frozen=True)
class Skew(Checked):
    """At every step, rank r is slower by `first_ms` + r * `step_ms`.

    The micro-benchmark of eager-SGD (PPoPP 2020, section 7.1): rank r sleeps r ms. Mean delay over the ranks:
    `first_ms` + (world - 1) / 2 * `step_ms`; the last rank has the largest.

    >>> [round(Skew(step_ms=10).compute_s(rank, world=4, step=0, base_s=0.1), 3) for rank in range(4)]
    [0.1, 0.11, 0.12, 0.13]
    """

    step_ms: float = at_least(0, 1.0)
    first_ms: float = at_least(0, 0.0)

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        return base_s + (self.first_ms + rank * self.step_ms) / 1000


@dataclass(frozen=True)
class ShiftingSkew(Checked):
    """All ranks are slower, evenly from `min_ms` to `max_ms`, and each has another place at every step.

    The CIFAR-10 experiment of eager-SGD (PPoPP 2020, section 7.2): 50 to 400 ms over 8 ranks, shifted by one rank at
    each step. Mean delay: half of `min_ms` + `max_ms`, at every step and for every rank. A rank that is alone has
    `min_ms`.

    >>> [round(ShiftingSkew().compute_s(rank, world=8, step=1, base_s=0), 2) for rank in range(8)]
    [0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.05]
    """

    min_ms: float = at_least(0, 50.0)
    max_ms: float = 400.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self.min_ms, "max_ms", self.max_ms)

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        share = (rank + step) % world / max(1, world - 1)
        return base_s + (self.min_ms + (self.max_ms - self.min_ms) * share) / 1000


@dataclass(frozen=True)
class SlowRanks(Checked):
    """The first `k` ranks are slower by `factor`, at every step: older machines, or shared ones.

    Mean over the ranks: 1 + (`factor` - 1) * k / world times the undisturbed time. No rank is ever slower than that.

    >>> [SlowRanks(k=2, factor=3).compute_s(rank, world=4, step=0, base_s=0.5) for rank in range(4)]
    [1.5, 1.5, 0.5, 0.5]
    """

    k: int = ranks(1)
    factor: float = at_least(1, 2.0)

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        check_fits(self.k, world)
        return base_s * self.factor if rank < self.k else base_s


class Noise(Checked, ABC):
    """A delay that does not depend on other ranks or steps, added to the undisturbed time."""

    @abstractmethod
    def delay_ms(self, rank: int, step: int) -> float:
        """The delay that was drawn for this rank and step."""

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        return max(0.0, base_s + self.delay_ms(rank, step) / 1000)


@dataclass(frozen=True)
class NormalNoise(Noise):
    """Normal noise around `mean_ms`: half of the steps are faster than that. Light tail.

    Mean and standard deviation (`sd_ms`) as named, as long as hardly any step is cut at 0 seconds of computing. One
    step in 44 is over the mean by two standard deviations, one in 741 by three.
    """

    mean_ms: float = at_least(0, 0.0)
    sd_ms: float = at_least(0, 20.0)
    seed: int = seed()

    def delay_ms(self, rank: int, step: int) -> float:
        return self.mean_ms + self.sd_ms * normal(self.seed, rank, step)


@dataclass(frozen=True)
class LogNormalNoise(Noise):
    """A log-normal delay of `mean_ms`: mostly short, now and then many times longer.

    Mean and standard deviation (`sd_ms`) as named; they are those of the delay, not of its logarithm. With the defaults
    the median is 8.9 ms, and one step in a hundred is delayed by more than 171 ms.
    """

    mean_ms: float = above(0, 20.0)
    sd_ms: float = at_least(0, 40.0)
    seed: int = seed()

    def delay_ms(self, rank: int, step: int) -> float:
        variance = math.log1p((self.sd_ms / self.mean_ms) ** 2)
        return self.mean_ms * math.exp(math.sqrt(variance) * normal(self.seed, rank, step) - variance / 2)


@dataclass(frozen=True)
class GammaNoise(Noise):
    """A gamma delay of `mean_ms`: the sum of many small waits. Exponential tail.

    Mean and standard deviation (`sd_ms`) as named; equal ones give the exponential distribution. With the defaults, one
    step in a hundred is delayed by more than 50 ms.
    """

    mean_ms: float = above(0, 20.0)
    sd_ms: float = above(0, 10.0)
    seed: int = seed()

    def delay_ms(self, rank: int, step: int) -> float:
        """Marsaglia and Tsang's method (ACM TOMS, 2000) for the shape plus 1, brought back by a power of a uniform."""
        shape = (self.mean_ms / self.sd_ms) ** 2
        d = shape + 2 / 3
        c = 1 / math.sqrt(9 * d)
        for draw in count(1, 2):  # at least 95 first draws in a hundred are taken
            x = normal(self.seed, rank, step, draw)
            v = (1 + c * x) ** 3
            if v > 0 and math.log(uniform(self.seed, rank, step, draw + 1)) < x * x / 2 + d * (1 - v + math.log(v)):
                break
        return self.mean_ms / shape * d * v * math.pow(uniform(self.seed, rank, step), 1 / shape)


@dataclass(frozen=True)
class ExponentialNoise(Noise):
    """An exponential delay of `mean_ms`: waiting for something that comes at random.

    The standard deviation is the mean. A share of exp(-x) of the steps is delayed by more than x times the mean: one in
    a hundred by more than 4.6 times.
    """

    mean_ms: float = at_least(0, 20.0)
    seed: int = seed()

    def delay_ms(self, rank: int, step: int) -> float:
        return -self.mean_ms * math.log(uniform(self.seed, rank, step))


@dataclass(frozen=True)
class ParetoNoise(Noise):
    """A Pareto delay of at least `min_ms`: the heaviest tail of these models.

    Mean: `alpha` / (`alpha` - 1) times `min_ms`. A share of x**-alpha of the steps is delayed by more than x times
    `min_ms`: with the defaults, a mean of 20 ms, and one step in a hundred over 100 ms. The variance is infinite up to
    an `alpha` of 2.
    """

    min_ms: float = at_least(0, 10.0)
    alpha: float = above(1, 2.0)
    seed: int = seed()

    def delay_ms(self, rank: int, step: int) -> float:
        return self.min_ms * math.pow(uniform(self.seed, rank, step), -1 / self.alpha)


@dataclass(frozen=True)
class Pauses(Noise):
    """Once in `every` steps on average, a rank stands still for `pause_ms`.

    Garbage collection, checkpoints, pre-emption. Mean delay: `pause_ms` / `every`. Every delay is 0 or `pause_ms`; the
    steps between two pauses are geometrically distributed.
    """

    every: float = at_least(1, 100.0)
    pause_ms: float = at_least(0, 2000.0)
    seed: int = seed()

    def delay_ms(self, rank: int, step: int) -> float:
        return self.pause_ms if uniform(self.seed, rank, step) * self.every < 1 else 0.0


@dataclass(frozen=True)
class Bursts(Checked):
    """Each rank is now and then slower by `factor` for a while: the noise of a cloud.

    A Markov chain per rank. Bursts last `burst_steps` on average and the calm between them `calm_steps`, both
    geometrically distributed. Mean: 1 + (`factor` - 1) * `burst_steps` / (`burst_steps` + `calm_steps`) times the
    undisturbed time, from the first step on; never more than `factor` times.

    What was drawn for a rank is kept, two numbers for each burst. Asking for a step draws all bursts before it.
    """

    factor: float = at_least(1, 3.0)
    burst_steps: float = at_least(1, 10.0)
    calm_steps: float = at_least(1, 90.0)
    seed: int = seed()
    #: for each rank, the step at which each phase ended; a phase with an even number of ends before it is a burst
    _ends: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        ends = self._ends.get(rank)
        if ends is None:
            begins_in_burst = uniform(self.seed, rank, 0) * (self.burst_steps + self.calm_steps) < self.burst_steps
            ends = self._ends[rank] = [0, 0] if begins_in_burst else [0]
        while ends[-1] <= step:
            ends.append(ends[-1] + self._phase_steps(rank, len(ends)))
        return base_s * self.factor if bisect_right(ends, step) % 2 == 0 else base_s

    def _phase_steps(self, rank: int, phase: int) -> int:
        """Geometrically distributed: without memory, so the first phase may have begun before the first step."""
        mean = self.burst_steps if phase % 2 == 0 else self.calm_steps
        return 1 + int(math.log(uniform(self.seed, rank, phase)) / math.log1p(-1 / mean)) if mean > 1 else 1


class _TruncatedLogNormal:
    def __init__(self, low: float, high: float, log_mean: float, log_sd: float) -> None:
        self._log = log_mean, log_sd
        self._below = STANDARD_NORMAL.cdf((math.log(low) - log_mean) / log_sd)
        self._within = STANDARD_NORMAL.cdf((math.log(high) - log_mean) / log_sd) - self._below

    def quantile(self, u: float) -> float:
        """What a share u of all draws lies below."""
        log_mean, log_sd = self._log
        return math.exp(log_mean + log_sd * STANDARD_NORMAL.inv_cdf(self._below + u * self._within))


@dataclass(frozen=True)
class Lengths(Checked):
    """Sequences of unequal length: an LSTM over the videos of UCF101, in bucketed batches of 16.

    Eager-SGD (PPoPP 2020, section 2) measured 201 to 3,410 ms for a batch, mean 1,235, standard deviation 706. So does
    this model; one batch in twenty takes over 2,691 ms. `mean_ms` scales all of it. The videos have 29 to 1,776 frames,
    mean 187, standard deviation 97.

    Both are log-normal distributions, truncated at the published bounds. Their parameters were solved for, so that mean
    and standard deviation after truncation are the published ones. No straight line from frames to time fits all four
    figures (through both bounds, the mean would be 491 ms), so a batch has the length that is as rare among videos as
    its time is among batches: longer ones always take longer.
    """

    mean_ms: float = above(0, 1235.0)
    seed: int = seed()

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        return _BATCH_MS.quantile(uniform(self.seed, rank, step)) * self.mean_ms / 1235 / 1000

    def frames(self, rank: int, step: int) -> int:
        return round(VIDEO_FRAMES.quantile(uniform(self.seed, rank, step)))


_BATCH_MS = _TruncatedLogNormal(201, 3410, log_mean=7.01324, log_sd=0.68137)
VIDEO_FRAMES = _TruncatedLogNormal(29, 1776, log_mean=5.11174, log_sd=0.48832)  #: for workloads that make such data


@dataclass(frozen=True)
class Rollouts(Checked):
    """Collecting experience for reinforcement learning: DD-PPO in Habitat, where some scenes take very long.

    WAGMA-SGD (TPDS 2021, section 5) measured 1.7 to 43.5 s in 5,000 iterations, with a median below 2 s. Here: median
    1.95 s, mean 2.29 s, 4.3 % over 4 s, 0.45 % over 10 s. `scale` shortens or lengthens all of it.

    A Lomax distribution of order 2 that begins at 1.7 s: 1.7 + 0.6 * (u**-0.5 - 1) for a uniform u. The 0.6 s make one
    iteration in 5,000 reach 43.5 s, where the distribution is cut, and the median then lies where it should.
    """

    scale: float = above(0, 1.0)
    seed: int = seed()

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        return self.scale * rollout_s(uniform(self.seed, rank, step))


def rollout_s(u: float) -> float:
    """The time that a share u of DD-PPO's iterations exceed, for workloads that make such episodes."""
    return min(43.5, 1.7 + 0.6 * (1 / math.sqrt(u) - 1))


# -- seen, not drawn --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedTimes:
    """What a trace shows, again: each rank computes as long as it did at that step.

    Each rank's first two steps, which warm up, are left out where there are more than four. A longer run goes through
    the recorded steps again and again. A rank that left no trace, or that only a larger world has, does as a recorded
    one does, but some steps ahead of it; otherwise the two would be slow together.
    """

    lengths_s: dict[int, tuple[float, ...]]  #: for each recorded rank, how long its steps were

    @classmethod
    def of(cls, trace: Trace) -> RecordedTimes:
        return cls({rank: tuple(step.compute_s for step in steady(r)) for rank, r in trace.ranks.items()})

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        steps = self.lengths_s.get(rank)
        if steps is None:
            others = list(self.lengths_s.values())
            steps = others[rank % len(others)]
            step += (1 + rank // len(others)) * APART
        return steps[step % len(steps)]


@dataclass(frozen=True)
class Recorded:
    """As in a recorded run: every rank computes as long as it did in `path` (see `outpace.record` and `RecordedTimes`).

    Read once, when the model is made; raises `TraceInvalid`. In a name with options ("trace:path=runs/x") the path
    cannot have a comma.
    """

    path: str = ""
    _times: RecordedTimes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.path == "":
            raise InvalidRules("a recorded imbalance needs the directory of a recording, as in trace:path=runs/x")
        trace = read_trace(str(self.path))  # a name like 2024 comes as a number
        object.__setattr__(self, "_times", RecordedTimes.of(trace))

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        return self._times.compute_s(rank, world, step, base_s)
