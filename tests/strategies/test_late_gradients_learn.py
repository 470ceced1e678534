"""Late work must not cost learning: where a rank is many steps late, training ends about where allreduce does.

The smallest slice of `make learning`: table A, cut to its first 80 steps, in which full weight for late work ends at
1.5 to 2.6 times allreduce's loss. Deterministic: simulated time, fixed seeds, one thread.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest
import torch
from torch import Tensor, nn

from bench.learning.cells import table_a
from bench.learning.runs import Job, made
from outpace.simulation import Scenario, simulate_training
from outpace.workloads import Score
from outpace.workloads.digits import Digits

STEPS, SEEDS, LEARNING_RATE, AT_MOST = 80, 2, 0.01, 1.35
CELL = next(replace(cell, steps=STEPS, points=1) for cell in table_a() if cell.learning_rate == LEARNING_RATE)


@cache
def loss(strategy: str) -> float:
    """On held-out data, in the mean of the seeds."""
    return fmean(made(Job(CELL, strategy, seed))["metric"] or float("inf") for seed in range(SEEDS))


@pytest.mark.parametrize("strategy", ["auto", "eager-solo", pytest.param("eager-majority", marks=pytest.mark.long)])
def test_with_momentum_late_gradients_learn_about_as_allreduce_does(strategy: str) -> None:
    assert loss(strategy) <= AT_MOST * loss("allreduce")


@pytest.mark.parametrize("strategy", ["eager-solo", pytest.param("eager-majority", marks=pytest.mark.long)])
def test_with_full_weight_they_do_not(strategy: str) -> None:
    assert loss(f"{strategy}:repair=none") > AT_MOST * loss("allreduce"), "so that the test above can fail"


class OwnClasses(Digits):
    """Each of four ranks has digits that no other has; how well those of the first are known is what counts."""

    OF_RANK = ((0, 1, 2, 3), (4, 5), (6, 7), (8, 9))

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        mine = torch.isin(self._targets, torch.tensor(self.OF_RANK[rank])).nonzero().flatten()
        chosen = mine[torch.arange(step * 16, step * 16 + 16) % len(mine)]
        return self._inputs[chosen], self._targets[chosen]

    @torch.no_grad()
    def score(self, model: nn.Module) -> Score:
        inputs, targets = self._held_out
        mine = torch.isin(targets, torch.tensor(self.OF_RANK[0]))
        outputs = model(inputs[mine])
        return Score(
            float(self.loss(outputs, targets[mine])), float((outputs.argmax(1) == targets[mine]).float().mean())
        )


@pytest.mark.parametrize(
    ("strategy", "least", "most"), [("auto", 0.8, 1.0), ("eager-solo", 0.8, 1.0), ("eager-solo:late=drop", 0.0, 0.3)]
)
def test_what_only_an_always_slow_rank_has_seen_is_learned(strategy: str, least: float, most: float) -> None:
    scenario = Scenario(ranks=4, steps=150, imbalance="slow:k=1,factor=5", network="zero", data="shared")
    assert least <= simulate_training(strategy, scenario, OwnClasses()).held_out.metric <= most
