"""Graphs are connected and simple in every world; mixing matrices keep the mean."""

from __future__ import annotations

import math
import random
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.errors import InvalidRules
from outpace.mixing.topology import (
    MIXING_NAMES,
    Row,
    best_edge_weight,
    edges_of,
    graph,
    keep_present,
    laplacian,
    metropolis,
    metropolis_over,
    mixing,
    neighbours,
)

NAMES = ("ring", "torus", "exponential", "star", "complete", "erdos-renyi", "erdos-renyi-0.9")
WORLDS = st.integers(1, 40)


def dense(rows: list[Row]) -> Any:
    matrix = np.zeros((len(rows), len(rows)))
    for rank, row in enumerate(rows):
        for peer, weight in row.items():
            matrix[rank, peer] = weight
    return matrix


@given(st.sampled_from(NAMES), WORLDS, st.integers(0, 5))
def test_every_graph_is_connected_and_simple(name: str, world: int, seed: int) -> None:
    made = graph(name, world, seed)
    assert sorted(made.nodes) == list(range(world))
    assert nx.is_connected(made)
    assert nx.number_of_selfloops(made) == 0
    assert not made.is_multigraph()


@pytest.mark.parametrize(
    ("name", "world", "degrees"),
    [
        ("ring", 8, {2}),
        ("ring", 2, {1}),
        ("ring", 1, {0}),
        ("torus", 16, {4}),
        ("torus", 12, {4}),
        ("torus", 8, {3}),  # 2 x 4: up and down are the same neighbour
        ("torus", 7, {2}),
        ("torus", 4, {2}),
        ("exponential", 8, {5}),
        ("exponential", 6, {4}),
        ("exponential", 2, {1}),
        ("star", 5, {1, 4}),
        ("complete", 6, {5}),
    ],
)
def test_degrees_of_named_graphs(name: str, world: int, degrees: set[int]) -> None:
    assert {degree for _, degree in graph(name, world).degree} == degrees


def test_random_graph_is_the_same_for_the_same_seed_only() -> None:
    first, again, other = (edges_of(graph("erdos-renyi-0.4", 12, seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_random_graph_disturbs_no_other_generator() -> None:
    before = random.getstate()
    graph("erdos-renyi", 12, 3)
    assert random.getstate() == before


def test_edges_are_read_in_any_order_and_direction() -> None:
    made = graph("2-1+0-1+1-0+2-0", 3)
    assert edges_of(made) == ((0, 1), (0, 2), (1, 2))
    assert edges_of(graph("0-1,1-2", 3)) == ((0, 1), (1, 2))
    assert neighbours(made, 1) == (0, 2)


@pytest.mark.parametrize(
    ("choice", "world", "says"),
    [
        ("rnig", 4, "known are ring, torus, exponential, star, complete, erdos-renyi"),
        ("", 4, "no graph is called ''"),
        ("0-1+2-3", 4, r"falls into 2 parts .*\{0, 1\}, \{2, 3\}; link them, for example with 1-2"),
        ("0-1", 3, r"\{0, 1\}, \{2\}"),
        ("0-4", 4, "names rank 4, but a world of 4 has ranks 0 to 3"),
        ("0-1+1", 4, "'1' in graph '0-1.1' is not an edge"),
        ("0-1+", 2, "is not an edge"),
        ("0-0", 2, "links rank 0 with itself"),
        ("erdos-renyi-2", 4, r"edge probability in \(0, 1\]"),
        ("erdos-renyi-", 4, "edge probability"),
        ("erdos-renyi-much", 4, "edge probability"),
        ("erdos-renyi-0.001", 40, "give a higher one"),
        ("ring", 0, "world of at least 1"),
    ],
)
def test_wrong_graphs_are_explained(choice: str, world: int, says: str) -> None:
    with pytest.raises(InvalidRules, match=says):
        graph(choice, world)


@given(st.sampled_from(NAMES), WORLDS, st.sampled_from(MIXING_NAMES))
def test_mixing_is_symmetric_keeps_the_mean_and_contracts(name: str, world: int, weights: str) -> None:
    made = graph(name, world)
    rows = mixing(weights, made)
    matrix = dense(rows)
    assert all(set(row) == {rank, *neighbours(made, rank)} for rank, row in enumerate(rows))
    assert np.array_equal(matrix, matrix.T)
    assert all(math.fsum(row.values()) == pytest.approx(1, abs=1e-14) for row in rows)
    assert np.linalg.norm(matrix - 1 / world, 2) < 1


@given(st.sampled_from(NAMES), WORLDS)
def test_metropolis_is_never_negative(name: str, world: int) -> None:
    assert all(weight > 0 for row in metropolis(graph(name, world)) for weight in row.values())


@pytest.mark.parametrize("world", [1, 2, 3, 7, 49, 64])
def test_metropolis_on_a_complete_graph_is_the_plain_mean(world: int) -> None:
    assert all(row == dict.fromkeys(range(world), 1 / world) for row in metropolis(graph("complete", world)))


def test_metropolis_on_a_ring_is_one_third() -> None:
    assert all(set(row.values()) == {1 / 3} for row in metropolis(graph("ring", 8)))


def test_best_constant_edge_weight_on_the_ring_of_eight() -> None:
    edges = edges_of(graph("ring", 8))
    spectrum = np.linalg.eigvalsh(laplacian(edges, 8))
    assert spectrum[[1, -1]] == pytest.approx([0.58579, 4], abs=1e-5)
    assert best_edge_weight(edges, 8) == pytest.approx(0.43613, abs=1e-5)


@given(st.sampled_from(("ring", "torus", "exponential", "erdos-renyi")), st.integers(3, 24))
def test_best_constant_contracts_at_least_as_well_as_other_constants(name: str, world: int) -> None:
    edges = edges_of(graph(name, world))
    matrix, best = laplacian(edges, world), best_edge_weight(edges, world)

    def spread(alpha: float) -> float:
        return float(np.linalg.norm(np.eye(world) - alpha * matrix - 1 / world, 2))

    assert all(spread(best) <= spread(best * factor) + 1e-12 for factor in (0.8, 0.99, 1.01, 1.2))


def test_unknown_mixing_is_explained() -> None:
    with pytest.raises(InvalidRules, match=r"known are metropolis .* and best-constant"):
        mixing("uniform", graph("ring", 4))


@given(st.sampled_from(NAMES), st.integers(2, 16), st.sampled_from(MIXING_NAMES), st.randoms(use_true_random=False))
def test_matrix_stays_doubly_stochastic_when_ranks_are_absent(
    name: str, world: int, weights: str, draw: random.Random
) -> None:
    present = {rank for rank in range(world) if draw.random() < 0.6}
    rows = mixing(weights, graph(name, world))
    kept = dense([keep_present(row, rank, present if rank in present else ()) for rank, row in enumerate(rows)])
    assert np.array_equal(kept, kept.T)
    assert kept.sum(axis=0) == pytest.approx(np.ones(world), abs=1e-14)
    assert all(kept[rank, rank] == pytest.approx(1) for rank in range(world) if rank not in present)


def test_keep_present_leaves_the_given_row_alone() -> None:
    row = {0: 0.5, 1: 0.5}
    assert keep_present(row, 0, ()) == {0: 1.0}
    assert row == {0: 0.5, 1: 0.5}


def test_metropolis_over_all_edges_is_metropolis() -> None:
    made = graph("erdos-renyi", 9)
    rows = metropolis_over(edges_of(made), range(9))
    assert [rows[rank] for rank in range(9)] == metropolis(made)


def test_metropolis_over_active_edges_leaves_others_alone() -> None:
    rows = metropolis_over([(0, 1), (1, 0), (1, 2), (2, 3)], {0, 1, 2, 4})
    assert rows[4] == {4: 1.0}
    assert 3 not in rows
    assert rows[1] == {0: 1 / 3, 2: 1 / 3, 1: 1 / 3}
    assert rows[0] == {1: 1 / 3, 0: 2 / 3}
