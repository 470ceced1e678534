"""Late work must not cost learning: where one rank is ten steps late, training ends about where allreduce does.

The smallest slice of `make learning`: table A, cut to its first 80 steps, in which full weight for late work ends at
1.5 to 2.6 times allreduce's loss. Deterministic: simulated time, fixed seeds, one thread.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest

from bench.learning.cells import table_a
from bench.learning.runs import Job, made

STEPS, SEEDS, LEARNING_RATE, AT_MOST = 80, 2, 0.01, 1.35
CELL = next(replace(cell, steps=STEPS, points=1) for cell in table_a() if cell.learning_rate == LEARNING_RATE)


@cache
def loss(strategy: str) -> float:
    """On held-out data, in the mean of the seeds."""
    return fmean(made(Job(CELL, strategy, seed))["metric"] or float("inf") for seed in range(SEEDS))


@pytest.mark.parametrize("strategy", ["eager-majority", "eager-solo"])
def test_with_momentum_discounted_late_gradients_learn_about_as_allreduce_does(strategy: str) -> None:
    assert loss(f"{strategy}:repair=discount") <= AT_MOST * loss("allreduce") < loss(strategy), "full weight does harm"
