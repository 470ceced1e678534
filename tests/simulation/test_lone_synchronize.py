"""A rank that is alone in `synchronize()` says so, and one that waits for slower ranks does not; nobody hangs."""

import os

import pytest
import torch

import outpace


def train(steps: tuple[int, ...], meetings: int, alone: int, strategy: str) -> list[float]:
    """Each rank makes its own number of steps between two meetings. Then rank 0 goes to so many alone."""
    rank = int(os.environ["RANK"])
    weight = torch.nn.Parameter(torch.zeros(2))
    opt = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), strategy)

    def step(times: int) -> None:
        for _ in range(times):
            weight.grad = torch.ones(2)
            opt.step()

    for _ in range(meetings):
        step(steps[rank])
        opt.synchronize()
    for _ in range(alone):
        step(steps[rank])
        if rank == 0:
            opt.synchronize()
    step(0 if rank == 0 else 3 * sum(steps) * alone)
    opt.finish()
    return weight.tolist()


def warnings(caplog) -> list[str]:
    return [text for record in caplog.records if "keep stepping" in (text := record.getMessage())]


@pytest.mark.parametrize("strategy", ["eager-majority", "allreduce", "local-sgd:every=2", "wagma", "ad-psgd"])
def test_a_rank_that_is_alone_in_synchronize_names_those_that_keep_stepping(caplog, strategy):
    ended = outpace.simulate(train, 3, ((20, 20, 20), 1, 1, strategy), compute_ms=1000)
    said, *more = warnings(caplog)
    assert not more
    assert said.startswith("[rank 0 - round ")
    assert "in synchronize() for ranks [1, 2], which keep stepping" in said
    assert "Call synchronize() on all ranks" in said
    assert len({tuple(weights) for weights in ended.results}) == 1


@pytest.mark.parametrize("strategy", ["eager-majority", "eager-solo", "local-sgd:every=2", "wagma", "ad-psgd"])
def test_ranks_that_are_merely_slower_or_have_more_data_raise_no_alarm(caplog, strategy):
    steps = (20, 20, 25)  # the last rank has a few more, and rank 0 takes eight times as long
    outpace.simulate(train, 3, (steps, 3, 0, strategy), compute_ms=1000, imbalance="slow:k=1,factor=8")
    assert not warnings(caplog)
