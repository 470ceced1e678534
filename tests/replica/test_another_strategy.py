"""A checkpoint that was saved under one strategy and is loaded under another."""

from __future__ import annotations

import logging

import pytest
import torch

from outpace import DistributedOptimizer, strategies


def optimizer(name: str, weight: torch.nn.Parameter) -> DistributedOptimizer:
    return DistributedOptimizer(torch.optim.SGD([weight], lr=0.1, momentum=0.9), name)


def step(weight: torch.nn.Parameter, opt: DistributedOptimizer) -> None:
    weight.grad = torch.ones_like(weight)
    opt.step()


@pytest.mark.parametrize("saved", strategies.names())
def test_weights_and_optimizer_state_go_on_whatever_strategy_comes_next(saved, caplog):
    weight = torch.nn.Parameter(torch.zeros(2))
    with optimizer(saved, weight) as before:
        for _ in range(3):
            step(weight, before)
        before.synchronize()
        state, then, momentum = before.state_dict(), weight.detach().clone(), before.state[weight].copy()
    for name in strategies.names():
        caplog.clear()
        again = torch.nn.Parameter(then.clone())
        with caplog.at_level(logging.WARNING, "outpace"), optimizer(name, again) as after:
            after.load_state_dict(state)
            assert torch.equal(again, then)
            assert momentum.keys() == after.state[again].keys()
            step(again, after)
        assert bool((again < then).all())
        kinds = {type(opt._replica) for opt in (before, after)}
        assert len(caplog.records) == len(kinds) - 1
        if caplog.records:
            assert "continue from it" in caplog.records[0].message
