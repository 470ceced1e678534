"""Weights that are written after the optimizer was made: what all begin with, or what nobody else sees."""

from __future__ import annotations

import logging
import os
from itertools import product

import pytest
import torch

import outpace
from outpace import DistributedOptimizer, strategies

LOADED = 100.0


def train(strategy: str, loading: tuple[int, ...], at: int, by_rank: bool, dawdles: bool = False) -> float:
    """Some ranks load weights before a step, all alike or each its own, and rank 0 may take its time before its first.

    Returns the weight at the end.
    """
    rank = int(os.environ["RANK"])
    weight = torch.nn.Parameter(torch.full((2,), float(rank)))
    optimizer = DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), strategy)
    if dawdles and rank == 0:
        optimizer._compute(1)
    for step in range(4):
        if step == at and rank in loading:
            with torch.no_grad():
                weight.fill_(LOADED + rank * by_rank)
        weight.grad = torch.ones(2)
        optimizer.step()
    optimizer.finish()
    assert torch.equal(weight, weight[0].expand(2))
    return weight.tolist()[0]


def ended(*args: object, **options: object) -> set[float]:
    return set(outpace.simulate(train, ranks=3, args=args, **options).results)


def test_what_every_rank_loads_after_wrapping_is_what_they_train(caplog):
    assert ended("allreduce", (0, 1, 2), 0, False) == {LOADED - 4}
    solo = ended("eager-solo", (0, 1, 2), 0, False, imbalance="slow:factor=5")
    assert len(solo) == 1
    assert solo.pop() > LOADED - 13
    assert not caplog.records


def stays(strategy: str) -> list[float]:
    """Loads weights after wrapping, and makes steps that change nothing. Returns the weights after each."""
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), strategy)
    with torch.no_grad():
        weight.fill_(LOADED)
    seen = []
    for _ in range(7):
        weight.grad = torch.zeros(2)
        optimizer.step()
        seen.append(weight.tolist()[0])
    optimizer.finish()
    return [*seen, weight.tolist()[0]]


@pytest.mark.parametrize("name", strategies.names())
def test_no_strategy_goes_back_to_weights_from_before_the_load(name):
    short = {"diloco": "diloco:every=2", "noloco": "noloco:every=2", "local-sgd": "local-sgd:every=2"}
    results = outpace.simulate(stays, ranks=3, args=(short.get(name, name),)).results
    assert all(seen == pytest.approx([LOADED] * 8) for seen in results)


@pytest.mark.parametrize("strategy", ["allreduce", "eager-solo", "eager-majority", "eager-solo:max_staleness=1"])
@pytest.mark.parametrize("imbalance", ["none", "slow:factor=5", "exponential:mean_ms=100"])
def test_replicas_are_equal_also_where_ranks_load_different_weights_or_some_load_none(strategy, imbalance):
    for loading, by_rank, dawdles in product([(0,), (2,), (1, 2)], [False, True], [False, True]):
        assert len(ended(strategy, loading, 0, by_rank, dawdles, imbalance=imbalance)) == 1, (loading, by_rank, dawdles)


def test_with_full_quorum_weights_that_one_rank_loads_are_everybodys():
    assert ended("allreduce", (0,), 0, False) == {LOADED - 4}


def test_weights_written_between_two_steps_are_pointed_out_once(caplog):
    with caplog.at_level(logging.WARNING, "outpace"):
        ended("allreduce", (1,), 2, False)
    (record,) = caplog.records
    assert "rank 1 - round 2] parameter 0 was written between two steps, but not by this optimizer" in record.message
    assert "optimizer.load_state_dict()" in record.message


def test_what_others_train_already_is_taken_up_and_said(caplog):
    with caplog.at_level(logging.WARNING, "outpace"):
        assert len(ended("eager-solo", (0,), 0, False, True, imbalance="slow:factor=9")) == 1
    (record,) = caplog.records
    assert "this rank has taken over theirs" in record.message


def goes_back_together() -> list[float]:
    """All ranks go back to a checkpoint while they train. One of them was started again long before."""
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), "allreduce")
    optimizer._engine.came_late = os.environ["RANK"] == "1"
    saved = weight.detach().clone(), optimizer.state_dict()
    for _ in range(3):
        weight.grad = torch.ones(2)
        optimizer.step()
    with torch.no_grad():
        weight.copy_(saved[0])
    optimizer.load_state_dict(saved[1])
    weight.grad = torch.ones(2)
    optimizer.step()
    optimizer.finish()
    return weight.tolist()


def test_a_rank_that_was_started_again_and_has_stepped_goes_back_to_a_checkpoint_with_the_others():
    assert outpace.simulate(goes_back_together, ranks=3).results == ([-1.0, -1.0],) * 3


def goes_back_alone(first: int) -> float:
    """Both ranks load a checkpoint after rank 1 has trained. Rank 0 has not, so that its own state is loaded already,
    and it finishes at once: before the other goes back, or after that."""
    rank = int(os.environ["RANK"])
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), "eager-solo")
    saved = optimizer.state_dict()
    for _ in range(3 * rank):
        weight.grad = torch.ones(2)
        optimizer.step()
    optimizer._compute(50 if first == rank else 100)
    with torch.no_grad():
        weight.fill_(LOADED)
    optimizer.load_state_dict(saved)
    optimizer.finish()
    return weight.tolist()[0]


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_that_has_finished_ends_with_the_checkpoint_that_the_others_go_back_to(first):
    assert outpace.simulate(goes_back_alone, ranks=2, args=(first,)).results == (LOADED, LOADED)
