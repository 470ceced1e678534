"""Stochastic gradient push: mass is conserved, push-weights undo the bias, and powers of two mix exactly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outpace.engines.engine import Engine
from outpace.mixing.schedules import push_peers
from tests.support.by_hand import Table, Walk, assert_near, at, first_only, noise, quadratics, walk

START = [1.0, -2.0, 0.5]


def mass(engine: Engine) -> tuple[float, Tensor]:
    """The push-weight and the numerator."""
    return engine.replica.push_weight(), engine.replica.published()[0].clone()


def pushed(choice: str, world: int, steps: int, **options: object) -> list[Walk]:
    options = {"finishes": False, **options}
    return walk(choice, world, steps, first_only(noise(world, 3, seed=7)), start=START, look=mass, **options)  # type: ignore[arg-type]


def mean_of(world: int) -> Tensor:
    return torch.tensor(START, dtype=torch.float64) - 0.1 * noise(world, 3, seed=7).mean(0)


@pytest.mark.parametrize(("world", "steps"), [(2, 1), (4, 2), (8, 3), (16, 4)])
def test_powers_of_two_have_the_exact_mean_after_log_n_steps(world: int, steps: int) -> None:
    walks = pushed("sgp", world, steps)
    assert_near(at(walks, steps - 1), mean_of(world).expand(world, 3), 1e-15)
    if steps > 1:
        assert (at(walks, steps - 2) - mean_of(world)).abs().max() > 1e-3, "and not before"


def test_other_worlds_do_not() -> None:
    walks = pushed("sgp", 6, 3)
    assert (at(walks, 2) - mean_of(6)).abs().max() > 1e-3


def test_more_peers_mix_in_fewer_steps() -> None:
    """With two peers a rank keeps a third, so it is not exact: but nearer than with one."""
    one, two = pushed("sgp:peers=1", 6, 2), pushed("sgp:peers=2", 6, 2)
    assert at(two, 1).std(0).max() < at(one, 1).std(0).max()


@pytest.mark.parametrize("world", [3, 4, 6])
@pytest.mark.parametrize("peers", [1, 2])
def test_on_a_regular_graph_push_weights_stay_one(world: int, peers: int) -> None:
    for mine in pushed(f"sgp:peers={peers}", world, 9, imbalance="exponential:mean_ms=80"):
        assert [weight for weight, _ in mine.seen] == pytest.approx([1.0] * 9, abs=1e-15)


@pytest.mark.parametrize("peers", [1, 2])
def test_push_is_step_then_average_by_the_matrix_of_its_pushes(peers: int) -> None:
    minima = noise(6, 3, seed=8)
    walks = walk(f"sgp:peers={peers}", 6, 8, quadratics(minima), start=START, imbalance="exponential:mean_ms=80")
    x = torch.tensor(START, dtype=torch.float64).expand(6, 3)
    for step in range(8):
        p = torch.eye(6, dtype=torch.float64) / (peers + 1)
        for rank in range(6):
            for peer in push_peers(rank, step, 6, peers):
                p[peer, rank] += 1 / (peers + 1)
        assert_near(p.sum(0), torch.ones(6, dtype=torch.float64))
        x = p @ (x - 0.1 * (x - minima))
        assert_near(at(walks, step), x)


@pytest.mark.parametrize("choice", ["sgp", "sgp:overlap=1", "sgp:overlap=3", "sgp:peers=2,overlap=2"])
def test_nothing_that_is_pushed_is_lost(choice: str) -> None:
    """Push-weights drift with overlap, and the mean of the de-biased weights is exact once all is received."""
    walks = pushed(choice, 6, 12, imbalance=Table(80, 112, 96, 168, 100, 90), finishes=True)
    for mine in walks:
        assert_near(mine.end, mean_of(6))
    weights = [weight for mine in walks for weight, _ in mine.seen]
    assert all(0 < weight < 6 for weight in weights)
    if "overlap" in choice:
        assert max(abs(weight - 1) for weight in weights) > 0.1, "something came late"


def test_weights_are_the_numerator_divided_by_the_push_weight() -> None:
    for mine in pushed("sgp:overlap=2", 5, 10, imbalance="exponential:mean_ms=100"):
        for z, (weight, numerator) in zip(mine.weights, mine.seen, strict=True):
            assert_near(z * weight, numerator, 1e-14)


def test_the_gradient_is_taken_at_the_debiased_weights_and_steps_the_numerator() -> None:
    at_which: dict[tuple[int, int], Tensor] = {}

    def gradient(rank: int, step: int, weights: Tensor) -> Tensor:
        at_which[rank, step] = weights
        return torch.ones_like(weights) * (rank + 1)

    walks = walk(
        "sgp:overlap=1",
        3,
        6,
        gradient,
        start=START,
        look=mass,
        imbalance=Table(80, 200, 100),
        finishes=False,
    )
    for rank, mine in enumerate(walks):
        for step in range(1, 6):
            assert torch.equal(at_which[rank, step], mine.weights[step - 1])
