"""Kinds of gossip, each by its own formula: MATCHA, non-blocking SGD, AL-DSGD, DSGD-AAU. All ranks draw the same."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from outpace.mixing import matchings, schedules, topology
from tests.support.by_hand import Table, assert_near, at, first_only, noise, quadratics, sgd, walk, walk_in_rounds
from tests.support.gossip_by_hand import MINIMA, START, UNEVEN, matrix, pulled
from tests.support.processes import finding_tests

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
    script = f"import random; random.seed(99); from {__name__} import drawn; print(drawn())"
    there = subprocess.run(
        [sys.executable, "-c", script],
        env=finding_tests(PYTHONHASHSEED="1"),
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
