"""A rank that is alone: every strategy is its local optimizer, except where its formula says otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outpace.strategies import names
from tests.support.by_hand import Maker, assert_near, noise, plain, sgd, walk

STEPS = 12
MINIMA = noise(STEPS, 5, seed=3)
START = [0.3, -1.0, 2.0, 0.0, 5.0]
NOT_LOCAL = {"diloco", "noloco"}  # an outer optimizer changes what it does
ROUNDED = {"dasgd": 1e-14, "decentlam": 1e-14}  # mean + (now - then) is the identity up to rounding

OPTIMIZERS: dict[str, Maker] = {
    "sgd": sgd(0.1),
    "momentum": sgd(0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
}
REFUSED = {"decentlam": ("adam", "nesterov")}  # it does the step of plain momentum SGD itself


def pull(rank: int, step: int, weights: Tensor) -> Tensor:
    return weights - MINIMA[step]


def alone(strategy: str, make: Maker) -> list[Tensor]:
    (mine,) = walk(strategy, 1, STEPS, pull, start=START, make=make, loss=lambda rank, step, x: float(x.sum()))
    assert torch.equal(mine.end, mine.weights[-1]), "nothing is left for finish"
    return mine.weights


def by_itself(make: Maker) -> list[Tensor]:
    return plain(make, START, lambda step, weights: pull(0, step, weights), STEPS)


@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [
        (strategy, optimizer)
        for strategy in names()
        for optimizer in OPTIMIZERS
        if strategy not in NOT_LOCAL and optimizer not in REFUSED.get(strategy, ())
    ],
)
def test_alone_a_strategy_is_its_local_optimizer(strategy: str, optimizer: str) -> None:
    for found, expected in zip(alone(strategy, OPTIMIZERS[optimizer]), by_itself(OPTIMIZERS[optimizer]), strict=True):
        assert_near(found, expected, ROUNDED.get(strategy, 0.0))


@pytest.mark.parametrize("strategy", ["local-sgd:every=1", "wagma:sync_every=1", "dasgd:delay=0", "sgp:overlap=2"])
def test_alone_no_option_changes_it(strategy: str) -> None:
    make = OPTIMIZERS["momentum"]
    assert all(map(torch.equal, alone(strategy, make), by_itself(make)))


def test_alone_a_lerp_pulls_back_to_where_the_average_began() -> None:
    """x(t+1) = xi x(t+1) + (1 - xi) x(t), one step after each average."""
    found = alone("dasgd:every=4,delay=1,merge=lerp,xi=0.25", sgd(0.1))
    weights, then = torch.tensor(START, dtype=torch.float64), None
    for step in range(STEPS):
        weights = weights - 0.1 * pull(0, step, weights)
        if then is not None:
            weights, then = 0.25 * weights + 0.75 * then, None
        if (step + 1) % 4 == 0:
            then = weights
        assert_near(found[step], weights)
    assert not torch.allclose(found[-1], by_itself(sgd(0.1))[-1], atol=1e-3)


def diloco(slow: Tensor, fast: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor]:
    """Nesterov on slow - fast, lr 0.7, mu 0.9."""
    delta = slow - fast
    momentum = 0.9 * momentum + delta
    return slow - 0.7 * (delta + 0.9 * momentum), momentum


def noloco(slow: Tensor, fast: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor]:
    """Heavy ball on fast - slow, lr 0.7, mu 0.5; alone the consensus term is 0."""
    momentum = 0.5 * momentum + 0.7 * (fast - slow)
    return slow + momentum, momentum


@pytest.mark.parametrize("outer", [diloco, noloco])
def test_alone_an_outer_optimizer_does_what_its_formula_says(outer: Callable[..., tuple[Tensor, Tensor]]) -> None:
    found = alone(f"{outer.__name__}:every=3", sgd(0.1))
    fast = slow = torch.tensor(START, dtype=torch.float64)
    momentum = torch.zeros_like(slow)
    for step in range(STEPS):
        fast = fast - 0.1 * pull(0, step, fast)
        if (step + 1) % 3 == 0:
            slow, momentum = outer(slow, fast, momentum)
            fast = slow
        assert_near(found[step], fast)
