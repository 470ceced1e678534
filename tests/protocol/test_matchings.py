"""MATCHA's plan: edges in matchings, best probabilities under a budget, the weight that mixes fastest."""

from __future__ import annotations

import math
import random
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.errors import InvalidRules
from outpace.mixing.matchings import Plan, active, matchings, mixing_weight, plan, probabilities
from outpace.mixing.topology import Edge, best_edge_weight, edges_of, graph, laplacian

NAMES = ("ring", "torus", "exponential", "star", "complete", "erdos-renyi")
#: The 8-node Erdos-Renyi graph of the MATCHA repository, in the matchings it is used with there.
PAPER: list[list[Edge]] = [
    [(1, 5), (6, 7), (0, 4), (2, 3)],
    [(1, 7), (3, 6)],
    [(1, 0), (3, 7), (5, 6)],
    [(1, 2), (7, 0)],
    [(3, 1)],
]
PAPER_EDGES = [edge for matching in PAPER for edge in matching]


def connectivity(parts: list[list[Edge]], p: list[float], world: int) -> float:
    """lambda_2 of the expected Laplacian, worked out in another way than the code under test."""
    expected = sum(share * laplacian(part, world) for share, part in zip(p, parts, strict=True))
    return float(np.linalg.eigvalsh(expected)[1])


def check_decomposition(parts: list[list[Edge]], whole: nx.Graph) -> None:
    assert sorted(edge for part in parts for edge in part) == list(edges_of(whole))
    assert all(max(Counter(rank for edge in part for rank in edge).values()) == 1 for part in parts)
    highest = max((degree for _, degree in whole.degree), default=0)
    assert len(parts) <= (highest if nx.is_bipartite(whole) else highest + 1)


@given(st.sampled_from(NAMES), st.integers(1, 24), st.integers(0, 3))
def test_every_edge_is_in_exactly_one_matching(name: str, world: int, seed: int) -> None:
    whole = graph(name, world, seed)
    before = edges_of(whole)
    parts = matchings(whole)
    assert edges_of(whole) == before
    assert matchings(graph(name, world, seed)) == parts
    check_decomposition(parts, whole)


def test_no_graph_of_up_to_seven_ranks_needs_more_matchings_than_vizing_allows() -> None:
    for whole in nx.graph_atlas_g()[1:]:
        check_decomposition(matchings(whole), whole)


def test_paper_graph_at_full_budget_is_dpsgd() -> None:
    spectrum = np.linalg.eigvalsh(laplacian(PAPER_EDGES, 8))
    assert spectrum[[1, -1]] == pytest.approx([0.67002, 6.32998], abs=1e-5)
    assert probabilities(PAPER, 8, 1) == [1.0] * 5
    alpha, rho = mixing_weight(PAPER, [1.0] * 5, 8)
    assert (alpha, rho) == pytest.approx((2 / 7, 0.65378), abs=1e-5)


def test_paper_graph_at_half_budget_mixes_better_than_all_links() -> None:
    p = probabilities(PAPER, 8, 0.5)
    assert p == pytest.approx([0.984, 0, 0.758, 0.758, 0], abs=2e-3)  # approximate: lambda_2 is flat around the best p
    assert connectivity(PAPER, p, 8) == pytest.approx(0.5612, abs=5e-5)
    alpha, rho = mixing_weight(PAPER, p, 8)
    assert (alpha, rho) == pytest.approx((0.3964, 0.6440), abs=3e-4)  # approximate, as they are for that p
    assert rho < 0.65378


def test_paper_graph_at_a_quarter_and_with_uniform_probabilities() -> None:
    _, quarter = mixing_weight(PAPER, probabilities(PAPER, 8, 0.25), 8)
    _, uniform = mixing_weight(PAPER, [0.5] * 5, 8)
    assert quarter == pytest.approx(0.8161, abs=3e-4)  # approximate, as p is
    assert uniform == pytest.approx(0.7906, abs=5e-5)


def test_ring_of_eight() -> None:
    parts = matchings(graph("ring", 8))
    assert len(parts) == 2
    assert mixing_weight(parts, [1, 1], 8) == pytest.approx((0.43613, 0.55431), abs=1e-5)
    assert probabilities(parts, 8, 0.5) == [0.5, 0.5]
    assert mixing_weight(parts, [0.5, 0.5], 8) == pytest.approx((0.60737, 0.78391), abs=1e-5)


@settings(max_examples=20)
@given(st.sampled_from(NAMES), st.integers(2, 9), st.sampled_from((0.1, 0.3, 0.5, 0.9)))
def test_probabilities_keep_the_budget_and_no_others_connect_better(name: str, world: int, budget: float) -> None:
    draw = random.Random(0)
    parts = matchings(graph(name, world))
    p = probabilities(parts, world, budget)
    assert all(0 <= share <= 1 for share in p)
    assert sum(p) <= budget * len(parts) + 1e-6 * len(parts)
    best = connectivity(parts, p, world)
    for _ in range(20):
        weights = [draw.random() for _ in parts]
        scale = budget * len(parts) / sum(weights)
        other = [min(1.0, weight * scale) for weight in weights]
        assert connectivity(parts, other, world) <= best * (1 + 2e-6) + 1e-5


@settings(max_examples=25)
@given(st.sampled_from(NAMES), st.integers(2, 9), st.sampled_from((0.2, 0.5, 1.0)))
def test_mixing_weight_is_the_best_one_and_rho_is_what_the_draws_give(name: str, world: int, budget: float) -> None:
    parts = matchings(graph(name, world))
    p = [budget] * len(parts)
    alpha, rho = mixing_weight(parts, p, world)
    assert rho == pytest.approx(enumerated_rho(parts, p, world, alpha), abs=1e-9)
    assert all(rho <= enumerated_rho(parts, p, world, alpha * factor) + 1e-9 for factor in (0.9, 0.999, 1.001, 1.1))
    assert rho < 1


def enumerated_rho(parts: list[list[Edge]], p: list[float], world: int, alpha: float) -> float:
    """The norm of E[W^2] - J, by adding up every possible draw."""
    total = np.zeros((world, world))
    stack = np.array([laplacian(part, world) for part in parts])
    for draw in range(1 << len(parts)):
        flags = [draw >> m & 1 for m in range(len(parts))]
        chance = math.prod(share if flag else 1 - share for flag, share in zip(flags, p, strict=True))
        if chance:
            w = np.eye(world) - alpha * np.tensordot(flags, stack, 1)
            total += chance * (w @ w)
    return float(np.linalg.norm(total - 1 / world, 2))


@pytest.mark.parametrize("budget", [0, -0.5, 1.5, math.nan])
def test_budget_outside_its_range_is_explained(budget: float) -> None:
    with pytest.raises(InvalidRules, match=r"not a share of the communication in \(0, 1\].*use 0.5"):
        plan("ring", 4, budget)


@settings(max_examples=60)
@given(st.sampled_from(NAMES), st.integers(1, 9), st.sampled_from((0.3, 0.5, 1)), st.integers(0, 99))
def test_rows_of_a_step_are_symmetric_and_keep_the_mean(name: str, world: int, budget: float, step: int) -> None:
    made = plan(name, world, budget)
    rows = [made.row(rank, step) for rank in range(world)]
    for rank, row in enumerate(rows):
        assert rank in row
        assert math.fsum(row.values()) == pytest.approx(1, abs=1e-14)
        assert all(rows[peer][rank] == weight for peer, weight in row.items())
        assert all(weight != 0 for peer, weight in row.items() if peer != rank)


def test_step_without_active_matching_waits_for_nobody() -> None:
    idle = Plan((((0, 1),),), (0.0,), 0.5, 1.0, seed=0)
    assert idle.row(0, 7) == {0: 1.0}


def test_own_weight_may_be_negative() -> None:
    made = Plan(tuple(map(tuple, PAPER)), (1.0,) * 5, 2 / 7, 0.65378, seed=0)
    assert made.row(1, 0)[1] == pytest.approx(-0.42857, abs=1e-5)


def test_full_budget_has_every_edge_in_every_step() -> None:
    made = plan("exponential", 8, 1)
    alpha = best_edge_weight(edges_of(graph("exponential", 8)), 8)
    assert made.alpha == alpha
    assert made.row(3, 12) == {3: 1 - 5 * alpha, **dict.fromkeys((1, 2, 4, 5, 7), alpha)}


@pytest.mark.parametrize(("world", "rows"), [(1, [{0: 1.0}]), (2, [{0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}])])
def test_smallest_worlds(world: int, rows: list[dict[int, float]]) -> None:
    made = plan("ring", world, 1)
    assert [made.row(rank, 0) for rank in range(world)] == rows


def test_flags_are_active_as_often_as_asked() -> None:
    p = (0.0, 0.25, 0.984, 1.0)
    draws = [active(p, 5, step) for step in range(4000)]
    assert [sum(flags) / 4000 for flags in zip(*draws, strict=True)] == pytest.approx(p, abs=0.03)
    assert draws != [active(p, 6, step) for step in range(4000)]


def test_flags_never_change_between_processes_or_releases() -> None:
    flags = [active((0.5,) * 4, 0, step) for step in range(4)]
    assert ["".join("01"[flag] for flag in row) for row in flags] == ["0101", "0100", "1010", "0111"]


def test_flags_disturb_no_other_generator() -> None:
    before = random.getstate()
    active((0.5,), 3, 123_456)
    assert random.getstate() == before
