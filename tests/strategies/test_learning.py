"""Late work must not cost learning: where one rank is ten steps late, training ends about where allreduce does.

The smallest slice of `make learning`: table A, cut to its first 80 steps, in which version 0.1.0 ended at two to
three times allreduce's loss. Deterministic: simulated time, fixed seeds, one thread.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest

from bench.learning.cells import table_a
from bench.learning.runs import Job, made

STEPS, SEEDS, LEARNING_RATES, AT_MOST = 80, 2, (0.01, 0.02), 1.5
CELLS = {
    cell.learning_rate: replace(cell, steps=STEPS, points=1)
    for cell in table_a()
    if cell.learning_rate in LEARNING_RATES
}


@cache
def loss(strategy: str, learning_rate: float) -> float:
    """On held-out data, in the mean of the seeds."""
    return fmean(made(Job(CELLS[learning_rate], strategy, seed))["metric"] or float("inf") for seed in range(SEEDS))


@pytest.mark.parametrize("learning_rate", LEARNING_RATES)
@pytest.mark.parametrize("strategy", ["eager-majority", "eager-solo"])
def test_with_momentum_late_gradients_learn_as_allreduce_does(strategy: str, learning_rate: float) -> None:
    assert loss(strategy, learning_rate) <= AT_MOST * loss("allreduce", learning_rate)
