"""Who trains a parameter: one optimizer, and nobody else's snapshots write it. In simulated time."""

from __future__ import annotations

import gc
import os
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import outpace
from outpace import DistributedOptimizer
from outpace.errors import InvalidRules, ParametersChanged
from outpace.imbalance import Imbalance
from outpace.replica.replica import OptimizerReplica

OWNERS = ("first", "second", "plain", "nobody", "frozen")
STEPS = 12


class Slow(Imbalance):
    """One rank takes seven times as long."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        return base_s * (7 if rank == self.rank else 1)


class Plan(NamedTuple):
    """Who owns each parameter, and how the optimizers are made."""

    owners: list[str]
    second_at: int  #: the step before which the second optimizer is made
    knows_model: tuple[bool, bool]
    strategies: tuple[str, str]
    slow: int  #: this rank
    frozen_in_groups: bool


PLANS = st.builds(
    Plan,
    st.lists(st.sampled_from(OWNERS), max_size=6).map(lambda more: ["first", "second", *more]),
    st.sampled_from((0, 0, 3)),
    st.tuples(st.booleans(), st.booleans()),
    st.tuples(*(st.sampled_from(("eager-solo:max_staleness=2", "eager-solo", "allreduce")),) * 2),
    st.integers(0, 2),
    st.booleans(),
)


def made(plan: Plan, rank: int) -> tuple[nn.ParameterList, dict[str, list[nn.Parameter]]]:
    model = nn.ParameterList(nn.Parameter(torch.full((2,), 100.0 * rank + i)) for i in range(len(plan.owners)))
    of = {owner: [p for p, own in zip(model, plan.owners, strict=True) if own == owner] for owner in OWNERS}
    for parameter in of["frozen"]:
        parameter.requires_grad_(False)
    return model, of


def wrapped(plan: Plan, which: int, model: nn.Module, parameters: list[nn.Parameter]) -> DistributedOptimizer:
    inner = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return DistributedOptimizer(inner, plan.strategies[which], model if plan.knows_model[which] else None)


def live(plan: Plan) -> dict[str, list[list[float]]]:
    """Trains, and returns the weights of each owner."""
    rank = int(os.environ["RANK"])
    model, of = made(plan, rank)
    frozen = of["frozen"] if plan.frozen_in_groups else []
    optimizers = [wrapped(plan, 0, model, of["first"] + frozen)]
    for step in range(STEPS):
        if step == plan.second_at:
            optimizers.append(wrapped(plan, 1, model, of["second"]))
        for parameter in of["first"] + of["second"]:
            parameter.grad = torch.full((2,), 1.0 + rank + step)
        with torch.no_grad():
            for parameter in of["plain"]:
                parameter.add_(1.0 + rank)  # an optimizer of the user's own, on this rank alone
        for optimizer in optimizers:
            optimizer.step()
    for optimizer in optimizers:
        optimizer.finish()
    return {owner: [p.tolist() for p in parameters] for owner, parameters in of.items()}


@settings(max_examples=20, deadline=None)
@given(PLANS)
def test_each_parameter_is_what_its_owner_made_of_it_whoever_lags(plan):
    slow = Slow(plan.slow)
    results = outpace.simulate(live, ranks=3, args=(plan,), imbalance=slow, network="host").results
    _, at_start = made(plan, 0)
    for owner in ("first", "second"):
        assert all(found[owner] == results[0][owner] for found in results), f"the {owner} optimizer's weights differ"
        assert all(found != p.tolist() for found, p in zip(results[0][owner], at_start[owner], strict=True))
    for rank, found in enumerate(results):
        is_known = any(plan.knows_model)
        begins_late = 0 if plan.knows_model[0] else plan.second_at
        mine = at_start if is_known else made(plan, rank)[1]
        if is_known or plan.frozen_in_groups:
            assert found["frozen"] == [p.tolist() for p in at_start["frozen"]]
        assert found["nobody"] == [p.tolist() for p in mine["nobody"]]
        if is_known:  # since all began with rank 0's: its own steps, none lost and nobody else's
            gone = (STEPS - begins_late) * (1.0 + rank) + begins_late * 1.0
            assert found["plain"] == [(p + gone).tolist() for p in at_start["plain"]]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(OWNERS), max_size=6), st.permutations([0, 1]))
def test_a_rank_that_is_started_again_has_each_optimizers_own_version_whichever_is_made_first(more, order):
    plan = Plan(["first", "second", *more], 0, (True, True), ("", ""), 0, False)
    _, captured = replicas(plan, 0)
    values = {}
    for which, owner in enumerate(("first", "second")):
        for parameter in captured[which].parameters:
            parameter.data.fill_(which + 0.5)
        values[owner] = which + 0.5
    first = captured[0].capture()
    for parameter in (p for replica in captured for p in replica.parameters):
        parameter.data.add_(1.0)  # the second snapshot is written later
    contents = [first, captured[1].capture()]
    values["second"] += 1.0
    contents[0].tensors[:] = [t.clone() for t in contents[0].tensors]
    model, of = made(plan, 2)
    for which in order:
        again = OptimizerReplica(torch.optim.SGD(of[("first", "second")[which]], lr=0.1), model)
        again.adopt(contents[which], 5, is_beginning=True)
        captured.append(again)  # kept alive: it owns its parameters
    assert {p.tolist()[0] for p in of["second"]} == {values["second"]}
    for owner in ("plain", "nobody", "frozen"):
        assert [p.tolist() for p in of[owner]] == [p.tolist() for p in made(plan, 0)[1][owner]]


def replicas(plan: Plan, rank: int) -> tuple[nn.Module, list[OptimizerReplica]]:
    model, of = made(plan, rank)
    return model, [OptimizerReplica(torch.optim.SGD(of[o], lr=0.1), model) for o in ("first", "second")]


def test_a_parameter_that_two_optimizers_train_is_refused_where_the_older_one_steps():
    shared, own = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    older = DistributedOptimizer(torch.optim.SGD([own, shared], lr=0.1), "eager-solo")
    with DistributedOptimizer(torch.optim.SGD([shared], lr=0.1), "eager-solo") as newer:
        shared.grad = torch.ones(2)
        newer.step()
        with pytest.raises(ParametersChanged, match="is also trained by a DistributedOptimizer that was made later"):
            older.step()


def test_after_finish_another_optimizer_may_train_the_same_parameters():
    weight = nn.Parameter(torch.ones(2))
    for _ in range(2):
        with DistributedOptimizer(torch.optim.SGD([weight], lr=0.5), "eager-solo") as optimizer:
            weight.grad = torch.ones(2)
            optimizer.step()
    assert weight.tolist() == [0.0, 0.0]


def test_an_optimizer_that_could_not_be_made_takes_nothing_away():
    weight = nn.Parameter(torch.ones(2))
    with DistributedOptimizer(torch.optim.SGD([weight], lr=0.5), "eager-solo") as optimizer:
        with pytest.raises(InvalidRules):
            DistributedOptimizer(torch.optim.SGD([weight], lr=0.5), "eager:quorum=7")
        gc.collect()
        weight.grad = torch.ones(2)
        optimizer.step()
    assert weight.tolist() == [0.5, 0.5]
