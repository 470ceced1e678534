"""Models of whole workloads, whose work differs by nature. Owns the published distributions; replaces `base_s`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from outpace.imbalance.base import Checked, above, seed
from outpace.randomness import STANDARD_NORMAL, uniform


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
VIDEO_FRAMES = _TruncatedLogNormal(29, 1776, log_mean=5.11174, log_sd=0.48832)  #: for whoever makes such data


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
    """The time that a share u of DD-PPO's iterations exceed, for whoever makes such episodes."""
    return min(43.5, 1.7 + 0.6 * (1 / math.sqrt(u) - 1))
