"""Under `torch.set_default_device`, what outpace makes for itself still lies in memory that ranks can share."""

from __future__ import annotations

import pytest
import torch

import outpace
from outpace import DistributedOptimizer, strategies

CODED = ("eager-majority:codec=global-qsgd", "eager-majority:codec=ok-topk", "eager-majority:codec=bf16")


def train(strategy: str) -> list[float]:
    """`meta` stands for a device that no rank can read: whatever lands there by mistake has no numbers."""
    model = torch.nn.BatchNorm1d(3)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.set_default_device("meta")
    try:
        with DistributedOptimizer(inner, strategy, model, max_grad_norm=1.0, timeout_s=60.0) as optimizer:
            for _ in range(5):
                for parameter in model.parameters():
                    parameter.grad = torch.ones_like(parameter)
                optimizer.step()
            optimizer.synchronize()
            optimizer.state_dict()
    finally:
        torch.set_default_device(None)
    return [p.tolist() for p in model.parameters()]


@pytest.mark.parametrize("name", [*strategies.names(), *CODED])
def test_every_strategy_trains_with_another_default_device(name):
    first, *others = outpace.simulate(train, ranks=3, args=(name,)).results
    assert first[0][0] < 1.0
    assert all(other == first for other in others)


def test_so_it_does_in_real_processes():
    first, second = outpace.spawn(train, 2, ("eager-majority:codec=ok-topk",))
    assert first == second
