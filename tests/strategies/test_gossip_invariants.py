"""Gossip: mixing moves nothing but differences, a complete graph is allreduce, and all ranks draw the same."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
import torch
from by_hand import (
    Maker,
    Table,
    Walk,
    assert_near,
    at,
    basis,
    first_only,
    noise,
    plain,
    quadratics,
    sgd,
    walk,
    walk_in_rounds,
)
from torch import Tensor

from outpace.protocol import matchings, schedules, topology
from outpace.strategies import strategy
from outpace.strategies.gossip import DPSGD, Matcha

MINIMA = noise(6, 4, seed=4)
START = [1.0, -2.0, 0.5, 0.0]
UNEVEN = Table(80, 112, 96, 168, 100, 90)


def pulled(choice: str, make: Maker | None = None, world: int = 6, steps: int = 10, **options: object) -> list[Walk]:
    gradient = quadratics(MINIMA, torch.linspace(0.5, 2.0, 6, dtype=torch.float64))
    return walk(choice, world, steps, gradient, start=START, make=make, **options)  # type: ignore[arg-type]


def matrix(choice: str, world: int, iteration: int = 0) -> Tensor:
    """The mixing matrix that the ranks' rows make."""
    chosen = strategy(choice)
    found = torch.zeros(world, world, dtype=torch.float64)
    for rank in range(world):
        for other, weight in chosen.row(rank, iteration, world).items():  # type: ignore[attr-defined]
            found[rank, other] = weight
    return found


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


@pytest.mark.parametrize("steps", [9, (9, 5, 7, 3, 9)], ids=["equal", "unequal"])
@pytest.mark.parametrize("choice", ANY_ORDER)
def test_every_gradient_is_applied_exactly_once_whatever_the_order(choice: str, steps: object) -> None:
    """Each gradient moves a coordinate of its own by 1, and the mean of all ranks' weights says how often."""
    if choice.startswith(("dasgd", "local-sgd")) and steps != 9:
        pytest.skip("whoever has left is not in their mean")
    walks = walk(
        choice,
        5,
        steps,  # type: ignore[arg-type]
        basis(9),
        start=[0.0] * 45,
        make=sgd(1.0),
        imbalance="exponential:mean_ms=150",
    )
    # finds: sgp, unequal: what quicker ranks push to a rank beyond its last step, while it still takes part, is lost.
    made = [9] * 5 if steps == 9 else list(steps)  # type: ignore[call-overload]
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


# -- MATCHA ------------------------------------------------------------------------------------------------------------


def test_matcha_with_the_whole_budget_is_d_psgd_with_the_best_constant() -> None:
    for graph in ("ring", "erdos-renyi"):
        matcha = pulled(f"matcha:graph={graph},budget=1")
        d_psgd = pulled(f"d-psgd:graph={graph},mixing=best-constant")
        assert all(torch.equal(at(matcha, step), at(d_psgd, step)) for step in range(10))


@pytest.mark.parametrize("choice", ["matcha", "matcha:graph=ring,budget=0.3", "matcha:graph=complete,budget=0.2"])
def test_matchas_matrices_are_symmetric_and_keep_the_mean_and_follow_the_run(choice: str) -> None:
    x = torch.tensor(START, dtype=torch.float64).expand(6, 4)
    walks, curvatures = pulled(choice), torch.linspace(0.5, 2.0, 6, dtype=torch.float64)[:, None]
    drawn = set()
    for iteration in range(10):
        w = matrix(choice, 6, iteration)
        assert torch.equal(w, w.T)
        assert_near(w.sum(1), torch.ones(6, dtype=torch.float64))
        x = w @ (x - 0.1 * curvatures * (x - MINIMA))
        assert_near(at(walks, iteration), x)
        drawn.add(tuple(w.flatten().tolist()))
    assert len(drawn) > 1


def test_matcha_stays_within_its_budget() -> None:
    plan = matchings.plan("erdos-renyi", 8, 0.5, 0)
    active = [sum(matchings.active(plan.probabilities, 0, step)) for step in range(4000)]
    assert sum(plan.probabilities) <= 0.5 * len(plan.matchings) + 1e-5
    assert sum(active) / len(active) == pytest.approx(sum(plan.probabilities), abs=0.1)
    assert plan.rho < 1


def drawn() -> str:
    """A digest of everything that ranks draw by themselves and must agree on."""
    found: list[object] = [matchings.plan("ring", 8, 0.4, 3).row(rank, step) for step in range(20) for rank in range(8)]
    found += [schedules.pairs(step, 9, 3) for step in range(20)]
    found += [schedules.random_neighbour(rank, step, {1, 4, 6}, 3) for step in range(20) for rank in range(8)]
    found += [topology.edges_of(topology.graph("erdos-renyi-0.4", 12, 3))]
    return hashlib.sha256(repr(found).encode()).hexdigest()


def test_another_process_that_hashes_and_draws_differently_draws_the_same() -> None:
    script = "import random; random.seed(99); import test_gossip_invariants as here; print(here.drawn())"
    there = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.path.dirname(__file__)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert there.stdout.strip() == drawn()


def test_pairs_are_disjoint_and_neighbours_are_linked() -> None:
    for step in range(30):
        partner = schedules.pairs(step, 7)
        assert [partner[partner[rank]] for rank in range(7)] == list(range(7))
        assert sum(partner[rank] == rank for rank in range(7)) == 1
    graph = topology.graph("exponential", 6)
    for step in range(30):
        for rank in range(6):
            near = topology.neighbours(graph, rank)
            assert schedules.random_neighbour(rank, step, near) in near


# -- Non-blocking SGD on graphs ----------------------------------------------------------------------------------------

PIECES = noise(6, 64, 4, seed=5)


@pytest.mark.parametrize("normalise", ["planned", "finished"])
@pytest.mark.parametrize(
    "name", ["nonblocking-dpsgd:graph=ring", "nonblocking-dpsgd:graph=star", "nonblocking-matcha:seed=0"]
)
@pytest.mark.parametrize("imbalance", [Table(*[80] * 6), UNEVEN], ids=["even", "uneven"])
def test_nonblocking_gossip_steps_by_what_each_rank_has_finished(name: str, imbalance: Table, normalise: str) -> None:
    def pull(rank: int, piece: int, weights: Tensor) -> Tensor:
        return weights - PIECES[rank, piece]

    choice = f"{name},normalise={normalise}"
    walks = walk_in_rounds(choice, [range(64)] * 6, 8, pull, start=START, imbalance=imbalance, finishes=False)
    whole = min(len(mine.taken) for mine in walks)  # afterwards some have left
    x = torch.tensor(START, dtype=torch.float64).expand(6, 4).clone()
    for step in range(whole):
        finished = [mine.taken[step] for mine in walks]
        sums = [torch.stack([pull(rank, piece, x[rank]) for piece in finished[rank]]).sum(0) for rank in range(6)]
        divisors = [8 if normalise == "planned" else len(pieces) for pieces in finished]
        y = x - 0.1 * torch.stack([total / divisor for total, divisor in zip(sums, divisors, strict=True)])
        x = matrix(choice, 6, step) @ y
        assert_near(at(walks, step), x)
    for mine in walks:
        assert mine.pieces == list(range(64)), "each once, and in order"


def test_nobody_computes_more_than_one_micro_batch_after_the_first_has_finished() -> None:
    walks = walk_in_rounds(
        "nonblocking-dpsgd:graph=complete", [range(64)] * 3, 8, lambda *_: _[2], imbalance=Table(80, 200, 800)
    )
    # 10, 25 and 100 ms a micro-batch: at 80 ms the first has finished 8; the others finish what they are busy with
    assert [len(mine.taken[0]) for mine in walks] == [8, 4, 1]


# -- AL-DSGD -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", ["star", "ring"])
def test_leaders_without_pull_are_d_psgd(graph: str) -> None:
    led = pulled(f"al-dsgd:graph={graph},c1=0,c2=0,p1=0,p2=0,rotate=false", loss=lambda rank, step, x: float(rank))
    plain_gossip = pulled(f"d-psgd:graph={graph}")
    assert all(torch.equal(at(led, step), at(plain_gossip, step)) for step in range(10))


@pytest.mark.parametrize("rotate", ["true", "false"])
def test_leaders_pull_as_the_formula_says(rotate: str) -> None:
    graph, c1, c2, p1, p2 = "0-1+1-2+1-3+3-4+4-5", 0.3, 0.1, 0.2, 0.15
    losses = noise(6, 8, seed=6)
    choice = f"al-dsgd:graph={graph},c1={c1},c2={c2},p1={p1},p2={p2},rotate={rotate},every=2"
    walks = walk(
        choice,
        6,
        8,
        quadratics(MINIMA),
        start=START,
        loss=lambda rank, step, x: float(losses[rank, step]),
        imbalance=UNEVEN,
    )
    x = torch.tensor(START, dtype=torch.float64).expand(6, 4)
    for step in range(8):
        w, y = matrix(choice, 6, step), x - 0.1 * (x - MINIMA)
        degree = (w > 0).sum(1).tolist()
        z = w @ y
        x = z.clone()
        for rank in range(6) if step % 2 == 0 else ():
            members = [other for other in range(6) if w[rank, other] > 0]
            best = y[min(members, key=lambda other: float(losses[other, step]))]
            most = max(degree[other] for other in members)
            hub = y[rank if degree[rank] == most else min(other for other in members if degree[other] == most)]
            pulled_z = (1 - c1 - c2) * z[rank] + c1 * best + c2 * hub
            x[rank] = pulled_z - p1 * (pulled_z - best) - p2 * (pulled_z - hub)
        assert_near(at(walks, step), x)


def test_equal_weights_stay_where_they_are_whoever_leads() -> None:
    walks = walk(
        "al-dsgd", 6, 5, lambda rank, step, x: torch.zeros_like(x), start=START, loss=lambda rank, step, x: float(-rank)
    )
    assert_near(at(walks, 4), torch.tensor(START, dtype=torch.float64).expand(6, 4))


# -- DSGD-AAU ----------------------------------------------------------------------------------------------------------


def test_all_together_on_a_complete_graph_is_d_psgd() -> None:
    together, d_psgd = pulled("dsgd-aau:graph=0-1+0-2+1-2", world=3), pulled("d-psgd:graph=complete", world=3)
    # two of three already link something new: all three average only if the third is there before
    assert not torch.allclose(at(together, 0), at(d_psgd, 0))
    two, pair = pulled("dsgd-aau:graph=complete", world=2), pulled("d-psgd:graph=complete", world=2)
    assert all(torch.equal(at(two, step), at(pair, step)) for step in range(10))


def test_those_who_wait_average_by_metropolis_weights_and_nobody_else_moves() -> None:
    unit, edges = -torch.eye(5, dtype=torch.float64), ((0, 1), (0, 4), (1, 2), (2, 3), (3, 4))
    before: dict[tuple[int, int], Tensor] = {}

    def gradient(rank: int, step: int, weights: Tensor) -> Tensor:
        before[rank, step] = weights
        return unit[rank].clone() if step == 0 else torch.zeros_like(weights)

    walks = walk(
        "dsgd-aau:graph=ring",
        5,
        6,
        gradient,
        start=[0.0] * 5,
        make=sgd(1.0),
        imbalance=Table(100, 170, 130, 410, 260),
        look=lambda engine: round(engine.now_s() * 1e3),
        finishes=False,
    )
    for rank, mine in enumerate(walks):
        for step in range(1, 6):
            assert torch.equal(before[rank, step], mine.weights[step - 1]), "nobody moves while it computes"
    current = torch.eye(5, dtype=torch.float64)  # each after its first step, wherever it is
    moments = sorted({time for mine in walks for time in mine.seen})
    together = []
    for time in moments[:6]:
        members = [rank for rank, mine in enumerate(walks) if time in mine.seen]
        p = torch.eye(5, dtype=torch.float64)
        for rank, row in topology.metropolis_over(edges, members).items():
            p[rank] = torch.zeros(5, dtype=torch.float64)
            for other, weight in row.items():
                p[rank, other] = weight
        assert_near(p.sum(0), torch.ones(5, dtype=torch.float64))
        assert_near(p.sum(1), torch.ones(5, dtype=torch.float64))
        current = p @ current
        for rank in members:
            assert_near(walks[rank].weights[walks[rank].seen.index(time)], current[rank])
        together.append(members)
    assert together[0] == [0, 1, 2], "at 170 ms: 0 and 2 were there before, and are no neighbours"
    assert any(len(members) < 5 for members in together)


def test_everything_spreads_to_everybody() -> None:
    walks = walk(
        "dsgd-aau:graph=ring",
        5,
        30,
        first_only(MINIMA[:5]),
        start=START,
        imbalance=Table(100, 170, 130, 410, 260),
        finishes=False,
    )
    ends = torch.stack([mine.end for mine in walks])
    assert_near(ends, ends.mean(0).expand_as(ends), 1e-2)


def test_mixing_by_the_identity_is_training_alone() -> None:
    class Alone(DPSGD):
        def row(self, rank: int, iteration: int, world: int) -> dict[int, float]:
            return {rank: 1.0}

    for rank, mine in enumerate(walk(Alone(), 3, 5, quadratics(MINIMA), start=START)):
        alone = plain(sgd(0.1), START, lambda step, x, mine=rank: x - MINIMA[mine], 5)
        assert all(map(torch.equal, mine.weights, alone))
    assert issubclass(Matcha, DPSGD)
