"""Every strategy learns handwritten digits about as well as allreduce, with one random slow rank in each step.

One seed, shorter and with fewer micro-batches than `bench/convergence.py`, whose three seeds are what the documentation
quotes: a single seed's accuracy spreads by half a point, so that the bound here is wider. Time is simulated.
"""

from functools import cache

import pytest
import torch

from outpace.simulation import SHARED, Scenario, simulate_training
from outpace.strategies import names
from outpace.workloads import Digits

EPOCHS, WITHIN = 16, 0.02
#: Averages every 50 steps are too few for so short a training; the documentation says by how much.
CHOSEN = {"diloco": "diloco:every=8,outer_lr=0.7,outer_momentum=0.5", "noloco": "noloco:every=4"}


@cache
def accuracy(name: str) -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        task = Digits(seed=50)
        scenario = Scenario(
            ranks=8,
            steps=EPOCHS * task.steps_per_epoch,
            imbalance="random:k=1,delay_ms=200",
            network="zero",
            data=SHARED,
            microbatches=2,
            seed=50,
        )
        found = simulate_training(CHOSEN.get(name, name), scenario, task).held_out.metric
    finally:
        torch.set_num_threads(threads)
    assert found is not None
    return found


#: The others are long together: `make test-all` has them.
FEW = ("eager-majority", "wagma")
MANY = [name for name in [*names(), "allreduce:codec=bf16", "allreduce:codec=ok-topk:density=0.1"] if name not in FEW]


@pytest.mark.parametrize("name", [*FEW, *(pytest.param(name, marks=pytest.mark.long) for name in MANY)])
def test_it_is_as_accurate_as_allreduce(name):
    assert accuracy("allreduce") > 0.95
    assert accuracy(name) > accuracy("allreduce") - WITHIN
