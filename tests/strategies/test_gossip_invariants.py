"""Gossip: mixing moves nothing but differences, a complete graph is allreduce, and nothing is lost or done twice."""

from __future__ import annotations

import pytest
import torch

from outpace.strategies.gossip import DPSGD, Matcha
from tests.support.by_hand import Maker, Table, assert_near, at, basis, first_only, plain, quadratics, sgd, walk
from tests.support.gossip_by_hand import MINIMA, START, UNEVEN, matrix, pulled

# -- a complete graph is allreduce -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixing", ["metropolis", "best-constant"])
@pytest.mark.parametrize("make", [sgd(0.1), sgd(0.1, momentum=0.9, weight_decay=0.01)], ids=["sgd", "momentum"])
def test_step_then_average_on_a_complete_graph_is_allreduce(make: Maker, mixing: str) -> None:
    gossip, together = pulled(f"d-psgd:graph=complete,mixing={mixing}", make), pulled("allreduce", make)
    for step in range(10):
        assert_near(at(gossip, step), at(together, step))


def test_average_while_stepping_on_a_complete_graph_is_not() -> None:
    gossip, together = pulled("d-psgd:graph=complete,order=awc"), pulled("allreduce")
    assert (at(gossip, 9) - at(together, 9)).abs().max() > 0.05
    assert_near(at(gossip, 0).mean(0), at(together, 0).mean(0))


def test_with_adam_a_complete_graph_is_not_allreduce() -> None:
    def adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.1)

    gossip, together = pulled("d-psgd:graph=complete", adam), pulled("allreduce", adam)
    assert (at(gossip, 9) - at(together, 9)).abs().max() > 1e-3


@pytest.mark.parametrize(("order", "mixing"), [("atc", "metropolis"), ("awc", "metropolis"), ("atc", "best-constant")])
@pytest.mark.parametrize("graph", ["ring", "star", "torus", "exponential", "0-1+1-2+2-3+3-4+4-5+1-4"])
def test_d_psgd_does_what_its_formula_says(graph: str, order: str, mixing: str) -> None:
    choice = f"d-psgd:graph={graph},mixing={mixing},order={order}"
    curvatures = torch.linspace(0.5, 2.0, 6, dtype=torch.float64)[:, None]
    walks, w = pulled(choice, imbalance=UNEVEN), matrix(choice, 6)
    x = torch.tensor(START, dtype=torch.float64).expand(6, 4)
    for step in range(10):
        g = curvatures * (x - MINIMA)
        x = w @ (x - 0.1 * g) if order == "atc" else w @ x - 0.1 * g
        assert_near(at(walks, step), x)


def test_mixing_by_the_identity_is_training_alone() -> None:
    class Alone(DPSGD):
        def row(self, rank: int, iteration: int, world: int) -> dict[int, float]:
            return {rank: 1.0}

    for rank, mine in enumerate(walk(Alone(), 3, 5, quadratics(MINIMA), start=START)):
        alone = plain(sgd(0.1), START, lambda step, x, mine=rank: x - MINIMA[mine], 5)
        assert all(map(torch.equal, mine.weights, alone))
    assert issubclass(Matcha, DPSGD)


# -- conservation ------------------------------------------------------------------------------------------------------

LOCK_STEP = [
    "d-psgd",
    "d-psgd:order=awc",
    "d-psgd:graph=star,mixing=best-constant",
    "d-psgd:graph=erdos-renyi-0.5",
    "matcha",
    "matcha:graph=complete,budget=0.3",
    "nonblocking-dpsgd",
    "nonblocking-matcha",
    "sgp",
    "sgp:peers=2",
    "wagma:group_size=2,grace=1",
    "wagma:group_size=3,grace=1",
    "wagma:order=average-step,grace=1",
    "local-sgd:every=3",
    "dasgd:every=3,delay=2",
]


@pytest.mark.parametrize("choice", LOCK_STEP)
def test_mixing_keeps_the_sum_over_the_ranks(choice: str) -> None:
    walks = walk(choice, 6, 8, first_only(MINIMA), start=START, network="host")
    total = 6 * torch.tensor(START, dtype=torch.float64) - 0.1 * MINIMA.sum(0)
    for step in range(8):
        assert_near(at(walks, step).sum(0), total)
    spread = [float(at(walks, step).std(0).max()) for step in range(8)]
    assert spread[-1] < 0.8 * max(spread), "the ranks come closer to each other"
    assert_near(6 * walks[0].end, total)


@pytest.mark.parametrize("graph", ["star", "0-1+1-2+2-3+3-4+4-5+1-4"])
def test_leaders_do_not_keep_the_sum_over_the_ranks(graph: str) -> None:
    walks = walk(
        f"al-dsgd:graph={graph}", 6, 8, first_only(MINIMA), start=START, loss=lambda rank, step, x: float(rank)
    )
    total = 6 * torch.tensor(START, dtype=torch.float64) - 0.1 * MINIMA.sum(0)
    assert (at(walks, 3).sum(0) - total).abs().max() > 1e-3


ANY_ORDER = [
    "ad-psgd",
    "ad-psgd:graph=ring",
    "dsgd-aau",
    "dsgd-aau:graph=star",
    "d-psgd",
    "matcha",
    "sgp",
    "sgp:overlap=2",
    "sgp:peers=2,overlap=1",
    "dasgd:every=3,delay=2",
    "dasgd:every=4,delay=1",
    "local-sgd:every=3",
    "local-sgd:every=4",
]
UNEQUAL = (9, 5, 7, 3, 9)
MEAN_OF_THE_PRESENT = ("dasgd", "local-sgd")  # whoever has left is not in their mean


@pytest.mark.parametrize(
    ("choice", "made"),
    [pytest.param(choice, (9,) * 5, id=f"{choice}-equal") for choice in ANY_ORDER]
    + [
        pytest.param(choice, UNEQUAL, id=f"{choice}-unequal")
        for choice in ANY_ORDER
        if not choice.startswith(MEAN_OF_THE_PRESENT)
    ],
)
def test_every_gradient_is_applied_exactly_once_whatever_the_order(choice: str, made: tuple[int, ...]) -> None:
    """Each gradient moves a coordinate of its own by 1, and the mean of all ranks' weights says how often."""
    walks = walk(
        choice,
        5,
        made,
        basis(9),
        start=[0.0] * 45,
        make=sgd(1.0),
        imbalance="exponential:mean_ms=150",
    )
    expected = torch.tensor([float(step < made[rank]) for rank in range(5) for step in range(9)], dtype=torch.float64)
    assert_near(-5 * walks[0].end, expected)
    assert all(torch.equal(mine.end, walks[0].end) for mine in walks)


@pytest.mark.parametrize("choice", ANY_ORDER)
def test_a_meeting_makes_all_equal_and_loses_no_gradient(choice: str) -> None:
    walks = walk(
        choice,
        5,
        9,
        basis(9),
        start=[0.0] * 45,
        make=sgd(1.0),
        imbalance="exponential:mean_ms=150",
        meets_after=3,
    )
    assert all(torch.equal(mine.weights[3], walks[0].weights[3]) for mine in walks)
    so_far = torch.tensor([float(step <= 3) for _ in range(5) for step in range(9)], dtype=torch.float64)
    assert_near(-5 * walks[0].weights[3], so_far)
    assert_near(-5 * walks[0].end, torch.ones(45, dtype=torch.float64))


@pytest.mark.parametrize(
    "choice", ["d-psgd", "matcha:budget=1", "dsgd-aau", "ad-psgd", "sgp", "noloco:every=1", "wagma:grace=0", "wagma"]
)
def test_a_rank_that_has_left_does_not_hold_the_others_back(choice: str) -> None:
    """One of two leaves after a step. The other one goes to its own minimum, and no longer to that of both."""
    minima = torch.tensor([[8.0], [-8.0]], dtype=torch.float64)
    walks = walk(choice, 2, (150, 1), quadratics(minima), make=sgd(0.2), finishes=False)
    assert_near(walks[0].end, minima[0], 1e-3)


def test_a_pair_has_the_mean_of_both_at_once() -> None:
    """AD-PSGD with two ranks: the first swaps before every step, while the second computes and does nothing."""
    walks = walk(
        "ad-psgd",
        2,
        (4, 2),
        lambda rank, step, x: torch.full_like(x, 8.0 if rank == 0 else 80.0),
        make=sgd(1.0),
        imbalance=Table([20, 10], [10, 1000]),
        finishes=False,
    )
    # At 10 ms the second is alone and goes to -80. The first comes at 20 ms: the mean of 0 and -80 is -40, then -48;
    # of -48 and -40 it is -44, then -52; and so on. The second comes last, with a gradient it computed at -80.
    assert [float(x) for x in walks[0].weights] == [-48.0, -52.0, -56.0, -60.0]
    assert [float(x) for x in walks[1].weights] == [-80.0, -52.0 - 80.0]
