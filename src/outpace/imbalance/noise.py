"""Models of noise: every rank has another delay at every step, drawn from one distribution. Owns the distributions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import count

from outpace.imbalance.draws import normal, uniform
from outpace.imbalance.options import check_above, check_least, check_seed


class Noise(ABC):
    """A delay that does not depend on other ranks or steps, added to the undisturbed time."""

    @abstractmethod
    def delay_ms(self, rank: int, step: int) -> float:
        """The delay that was drawn for this rank and step."""

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        """`base_s` and the delay, but not less than 0."""
        return max(0.0, base_s + self.delay_ms(rank, step) / 1000)


@dataclass(frozen=True)
class NormalNoise(Noise):
    """Normal noise around `mean_ms`: half of the steps are faster than that. Light tail.

    Mean and standard deviation as named, as long as hardly any step is cut at 0 seconds of computing. One step in 44 is
    over the mean by two standard deviations, one in 741 by three.
    """

    mean_ms: float = 0.0
    sd_ms: float = 20.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(0, mean_ms=self.mean_ms, sd_ms=self.sd_ms)
        check_seed(self.seed)

    def delay_ms(self, rank: int, step: int) -> float:
        """May be negative."""
        return self.mean_ms + self.sd_ms * normal(self.seed, rank, step)


@dataclass(frozen=True)
class LogNormalNoise(Noise):
    """A log-normal delay of `mean_ms`: mostly short, now and then many times longer.

    Mean and standard deviation as named; they are those of the delay, not of its logarithm. With the defaults the
    median is 8.9 ms, and one step in a hundred is delayed by more than 171 ms.
    """

    mean_ms: float = 20.0
    sd_ms: float = 40.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_above(0, mean_ms=self.mean_ms)
        check_least(0, sd_ms=self.sd_ms)
        check_seed(self.seed)

    def delay_ms(self, rank: int, step: int) -> float:
        """Always above 0."""
        variance = math.log1p((self.sd_ms / self.mean_ms) ** 2)
        return self.mean_ms * math.exp(math.sqrt(variance) * normal(self.seed, rank, step) - variance / 2)


@dataclass(frozen=True)
class GammaNoise(Noise):
    """A gamma delay of `mean_ms`: the sum of many small waits. Exponential tail.

    Mean and standard deviation as named; equal ones give the exponential distribution. With the defaults, one step in a
    hundred is delayed by more than 50 ms.
    """

    mean_ms: float = 20.0
    sd_ms: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_above(0, mean_ms=self.mean_ms, sd_ms=self.sd_ms)
        check_seed(self.seed)

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

    mean_ms: float = 20.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(0, mean_ms=self.mean_ms)
        check_seed(self.seed)

    def delay_ms(self, rank: int, step: int) -> float:
        """Always above 0."""
        return -self.mean_ms * math.log(uniform(self.seed, rank, step))


@dataclass(frozen=True)
class ParetoNoise(Noise):
    """A Pareto delay of at least `min_ms`: the heaviest tail of these models.

    Mean: `alpha` / (`alpha` - 1) times `min_ms`. A share of x**-alpha of the steps is delayed by more than x times
    `min_ms`: with the defaults, a mean of 20 ms, and one step in a hundred over 100 ms. The variance is infinite up to
    an `alpha` of 2.
    """

    min_ms: float = 10.0
    alpha: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(0, min_ms=self.min_ms)
        check_above(1, alpha=self.alpha)
        check_seed(self.seed)

    def delay_ms(self, rank: int, step: int) -> float:
        """Never less than `min_ms`."""
        return self.min_ms * math.pow(uniform(self.seed, rank, step), -1 / self.alpha)
