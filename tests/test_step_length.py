"""Which optimizers normalise their gradient, and that their steps are as long as in allreduce."""

from __future__ import annotations

import math
from functools import cache
from itertools import product

import pytest
import torch

import outpace
from outpace.replica.inner_step import SignalShare, StepLength, has_momentum, normalises

LINEAR = [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1)),
    lambda p: torch.optim.ASGD(p),
]
NORMALISING = [
    torch.optim.Adam,
    lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1, amsgrad=True),
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.Rprop,
]


class NeedsMore(torch.optim.SGD):
    """An optimizer that cannot be made from parameters and settings."""

    def __init__(self, params, secret):
        super().__init__(params, lr=secret)


def weights() -> list[torch.Tensor]:
    return [torch.nn.Parameter(torch.ones(4))]


@pytest.mark.parametrize("make", LINEAR)
def test_sgd_and_its_relatives_do_not_normalise(make) -> None:
    assert not normalises(make(weights()))


@pytest.mark.parametrize("make", NORMALISING)
def test_adam_and_its_relatives_do(make) -> None:
    assert normalises(make(weights()))


def test_an_optimizer_that_cannot_be_tried_is_known_by_its_kind() -> None:
    assert not normalises(NeedsMore(weights(), 0.1))


@pytest.mark.parametrize(
    ("make", "moves_on"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), False),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), True),
        (torch.optim.Adam, True),
        (torch.optim.NAdam, True),
        (torch.optim.Adagrad, False),
        (torch.optim.RMSprop, False),
        (lambda p: torch.optim.RMSprop(p, momentum=0.9), True),
    ],
)
def test_what_moves_on_without_a_gradient_has_momentum(make, moves_on: bool) -> None:
    assert has_momentum(make(weights())) == moves_on


@pytest.mark.parametrize(("matched", "part"), [(True, 0.25), (False, 1.0)])
def test_what_is_left_over_is_no_whole_step_of_momentum(matched: bool, part: float) -> None:
    """Four ranks train together, and one has a batch more, with a gradient of 0: only momentum moves the weight."""

    def train() -> float:
        steps = 11 if next(ranks) == 3 else 10
        weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        inner = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
        optimizer = outpace.DistributedOptimizer(inner, "allreduce", match_step_length=matched)
        for step in range(steps):
            weight.grad = torch.full_like(weight, float(step < 10))
            optimizer.step()
        optimizer.finish()
        return -weight.item()

    ranks = iter(range(4))
    velocity = [sum(0.5**k for k in range(step + 1)) for step in range(10)]
    expected = sum(velocity) + part * 0.5 * velocity[-1]
    assert outpace.simulate(train, ranks=4, network="zero").results == pytest.approx((expected,) * 4)


@pytest.mark.parametrize(("noise", "share"), [(0.0, 1.0), (1.0, 0.5), (10.0, 0.01)])
def test_the_share_of_signal_is_told_by_the_moments(noise: float, share: float) -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(2000))
    optimizer = torch.optim.Adam([weight], lr=0.0)
    for _ in range(300):
        weight.grad = 1.0 + noise * torch.randn(2000)
        optimizer.step()
    assert SignalShare(optimizer).look() == pytest.approx(share, abs=0.03)


def test_what_users_and_schedulers_see_stays_as_it_is() -> None:
    optimizer = torch.optim.AdamW(weights(), lr=0.1, weight_decay=0.5)
    with StepLength(optimizer).of_round(0.25, 1.0, rest_follows=True):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
        assert optimizer.param_groups[0]["weight_decay"] == pytest.approx(0.25)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]) == (0.1, 0.5)


@cache
def moved(strategy: str, noise: float, ranks: int, matched: bool = True, imbalance: str = "none") -> float:
    """How far Adam moves downhill in equal steps of all ranks, whose gradients are 1 and noise of their own."""

    def train() -> float:
        generator = torch.Generator().manual_seed(next(seeds))
        weight = torch.nn.Parameter(torch.zeros(400))
        inner = torch.optim.Adam([weight], lr=0.001)
        optimizer = outpace.DistributedOptimizer(inner, strategy, match_step_length=matched)
        for _ in range(60):
            weight.grad = 1.0 + noise * torch.randn(400, generator=generator)
            optimizer.step()
        optimizer.finish()
        return -weight.mean().item()

    seeds = iter(range(ranks))
    return float(outpace.simulate(train, ranks=ranks, network="zero", imbalance=imbalance).results[0])


@pytest.mark.parametrize(
    ("strategy", "noise"), [*product(("local-sgd", "d-psgd", "wagma"), (0.0, 10.0)), ("local-sgd", 3.0)]
)
def test_the_mean_of_steps_is_as_long_as_the_step_of_the_mean_gradient(strategy: str, noise: float) -> None:
    together = moved("allreduce", noise, 8)
    assert moved(strategy, noise, 8) == pytest.approx(together, rel=0.25)


def test_without_that_it_is_shorter_by_up_to_the_square_root_of_the_ranks() -> None:
    together = moved("allreduce", 10.0, 8)
    assert moved("local-sgd", 10.0, 8, matched=False) < 1.3 * together / math.sqrt(8)


@pytest.mark.parametrize("noise", [1.0, 10.0])
def test_more_and_smaller_rounds_move_as_far_as_fewer_whole_ones(noise: float) -> None:
    together, imbalance = moved("allreduce", noise, 8), "random:k=1,delay_ms=300"
    assert moved("eager-solo", noise, 8, imbalance=imbalance) == pytest.approx(together, rel=0.1)
    assert moved("eager-solo", noise, 8, imbalance=imbalance, matched=False) > 1.05 * together
