"""DecentLaM: momentum that does not move the fixed point of gossip, where momentum of each rank's own does.

Six ranks on a ring with weights of 1/3, quadratics with different minima, full gradients, lr 0.05. The figures are of
the instance below: curvatures from 1 to 3, minima drawn from a normal distribution.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from tests.support.by_hand import assert_near, at, noise, quadratics, sgd, walk

MINIMA = noise(6, 3, seed=0)
CURVATURES = torch.linspace(1.0, 3.0, 6, dtype=torch.float64)
OPTIMUM = (CURVATURES[:, None] * MINIMA).sum(0) / CURVATURES.sum()
LR = 0.05
RING = torch.stack([torch.eye(6, dtype=torch.float64).roll(by, 0) for by in (-1, 0, 1)]).sum(0) / 3


@cache
def fixed_point(choice: str, momentum: float) -> Tensor:
    walks = walk(choice, 6, 450, quadratics(MINIMA, CURVATURES), start=[0.0] * 3, make=sgd(LR, momentum=momentum))
    assert (at(walks, 449) - at(walks, 440)).abs().max() < 1e-9, "it has come to rest"
    return at(walks, 449)


def bias(choice: str, momentum: float) -> float:
    """Of the ranks from the optimum of their sum, root mean square."""
    return float((fixed_point(choice, momentum) - OPTIMUM).square().sum(1).mean().sqrt())


def solved(lr: float) -> Tensor:
    """x = W (x - lr A (x - c)), solved."""
    a = torch.diag(CURVATURES)
    return torch.linalg.solve(
        torch.eye(6, dtype=torch.float64) - RING @ (torch.eye(6) - lr * a), RING @ (lr * a) @ MINIMA
    )


def test_gossip_comes_to_rest_where_the_algebra_says() -> None:
    assert_near(fixed_point("d-psgd", 0.0), solved(LR), 1e-8)
    assert_near(fixed_point("d-psgd", 0.9), solved(LR / (1 - 0.9)), 1e-8)


def test_momentum_of_ones_own_moves_the_fixed_point_and_decentlams_does_not() -> None:
    plain, with_momentum = bias("d-psgd", 0.0), bias("d-psgd", 0.9)
    assert 3 < with_momentum / plain < 10, "1/(1 - beta) is the limit for small learning rates"
    assert bias("decentlam", 0.0) == pytest.approx(plain, abs=1e-8)
    assert bias("decentlam", 0.9) == pytest.approx(plain, abs=1e-6)
    assert_near(fixed_point("decentlam", 0.9), fixed_point("d-psgd", 0.0), 1e-6)


@pytest.mark.parametrize("graph", ["ring", "star", "complete"])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_without_momentum_decentlam_is_d_psgd(graph: str, decay: float) -> None:
    make = sgd(LR, weight_decay=decay)
    options = {"start": [1.0, 2.0, 3.0], "make": make, "imbalance": "exponential:mean_ms=80"}
    lam = walk(f"decentlam:graph={graph}", 6, 12, quadratics(MINIMA, CURVATURES), **options)  # type: ignore[arg-type]
    gossip = walk(f"d-psgd:graph={graph}", 6, 12, quadratics(MINIMA, CURVATURES), **options)  # type: ignore[arg-type]
    for step in range(12):
        assert_near(at(lam, step), at(gossip, step), 1e-14)


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_on_a_complete_graph_decentlam_is_parallel_momentum_sgd(decay: float) -> None:
    make = sgd(LR, momentum=0.9, weight_decay=decay)
    lam = walk("decentlam:graph=complete", 6, 12, quadratics(MINIMA, CURVATURES), start=[1.0, 2.0, 3.0], make=make)
    together = walk("allreduce", 6, 12, quadratics(MINIMA, CURVATURES), start=[1.0, 2.0, 3.0], make=make)
    for step in range(12):
        assert_near(at(lam, step), at(together, step), 1e-13)


def test_decentlam_does_what_its_formula_says() -> None:
    walks = walk("decentlam", 6, 12, quadratics(MINIMA, CURVATURES), start=[1.0] * 3, make=sgd(LR, momentum=0.9))
    x = torch.ones(6, 3, dtype=torch.float64)
    m = torch.zeros_like(x)
    for step in range(12):
        y = x - LR * CURVATURES[:, None] * (x - MINIMA)
        m = 0.9 * m + (x - RING @ y) / LR
        x = x - LR * m
        assert_near(at(walks, step), x)
