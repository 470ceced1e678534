"""Several optimizers in one script, as GANs have them: nobody waits for a rank that waits in another one."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import outpace
from tests.support.several import contributions, train

LOCK_STEP = ["allreduce", "d-psgd", "local-sgd:every=2", "sgp"]
EAGER = ["eager-majority", "eager:quorum=0.75", "eager:late=count"]
UNEVEN = (5, 6, 8, 11)
LOOPS = [(0, 1), (0, 0, 1), (0, 0, 1, 2, 2)]  #: which optimizer steps when, in one pass of the loop


@pytest.mark.parametrize("meets_every", [0, 3])
@pytest.mark.parametrize("strategy", [*LOCK_STEP, *EAGER, "nonblocking", "wagma", "ad-psgd"])
def test_uneven_data_holds_nobody_up(strategy: str, meets_every: int) -> None:
    """Who has less data waits in one optimizer's finish(), and is not waited for in the other's rounds and meetings."""
    run = outpace.simulate(train, 4, (strategy, UNEVEN, (0, 1), meets_every), imbalance="exponential:mean_ms=100")
    weights = [result.weights for result in run.results]
    assert all(each == weights[0] for each in weights)
    if strategy.startswith(("eager", "allreduce")):
        for optimizer in (0, 1):
            given = [step for round_ in contributions(run.results, optimizer) for step in round_]
            assert Counter(rank for rank, _ in given) == dict(enumerate(UNEVEN))
            assert len(set(given)) == len(given), "a contribution was applied twice"


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(LOOPS),
    st.sampled_from(["majority", "full", 2, 3, 0.75]),
    st.sampled_from(["carry", "count", "drop"]),
    st.tuples(*[st.integers(1, 12)] * 4),
    st.sampled_from([0, 0, 4]),
    st.integers(0, 1000),
)
def test_no_order_of_steps_is_a_deadlock(
    loop: tuple[int, ...], quorum: object, late: str, steps: tuple[int, ...], meets_every: int, seed: int
) -> None:
    """With quorums above a half, or three optimizers, ranks at different places of the loop can wait in a circle."""
    strategy = f"eager:quorum={quorum},late={late},grace=0"
    script = (strategy, steps, loop, meets_every)
    run = outpace.simulate(train, 4, script, imbalance="exponential:mean_ms=300", seed=seed)
    assert all(result.weights == run.results[0].weights for result in run.results)


@pytest.mark.parametrize("strategy", LOCK_STEP)
def test_a_long_wait_elsewhere_leaves_nobody_out_who_comes(strategy: str) -> None:
    """One rank takes a second for each step, so that the others wait long in both optimizers. Nothing else differs from
    ranks that are equally fast."""
    script = (strategy, (6,) * 4, (0, 1), 3)
    even = outpace.simulate(train, 4, script)
    one_slow = outpace.simulate(train, 4, script, imbalance="slow:k=1,factor=40", compute_ms=25)
    assert [result.weights for result in one_slow.results] == [result.weights for result in even.results]
    if strategy == "allreduce":
        for optimizer in (0, 1):
            rounds = contributions(one_slow.results, optimizer)
            assert [sorted(rank for rank, _ in round_) for round_ in rounds] == [[0, 1, 2, 3]] * 6


def test_an_optimizer_may_be_made_while_others_train() -> None:
    """The first ranks to make a second optimizer wait for the slow one, which needs a quorum in the first."""

    def warm_up_then_train() -> list[float]:
        rank = int(os.environ["RANK"])
        first, second = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
        one = outpace.DistributedOptimizer(torch.optim.SGD([first], lr=1.0), "eager:quorum=3,repair=none")
        for _ in range(2 + rank):
            first.grad = torch.ones(1)
            one.step()
        other = outpace.DistributedOptimizer(torch.optim.SGD([second], lr=1.0), "eager:quorum=3,repair=none")
        for optimizer, weight in ((one, first), (other, second)):
            weight.grad = torch.ones(1)
            optimizer.step()
        one.finish()
        other.finish()
        return [first.item(), second.item()]

    run = outpace.simulate(warm_up_then_train, 4)
    assert run.results == ([-(2 + 3 + 4 + 5 + 4) / 4, -1.0],) * 4
