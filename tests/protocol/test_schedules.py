"""Partners follow from seed, step and rank alone, and both sides of an exchange agree on it."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.errors import InvalidRules
from outpace.mixing.schedules import most_peers, pairs, push_peers, push_sources, random_neighbour

STEPS = st.integers(0, 1000)


def after_pushing(world: int, steps: int, peers: int = 1) -> list[list[Fraction]]:
    """Row i: which share of each rank's first value is in that of rank i, when everybody pushes equal parts."""
    values = [[Fraction(int(i == j)) for j in range(world)] for i in range(world)]
    for step in range(steps):
        parts = [[value / (peers + 1) for value in row] for row in values]
        heard = [(rank, *push_sources(rank, step, world, peers)) for rank in range(world)]
        values = [[sum((parts[j][k] for j in ranks), Fraction(0)) for k in range(world)] for ranks in heard]
    return values


@pytest.mark.parametrize("world", [2, 4, 8, 16])
def test_pushing_to_one_peer_reaches_the_exact_mean_in_a_power_of_two(world: int) -> None:
    assert after_pushing(world, most_peers(world)) == [[Fraction(1, world)] * world] * world


def test_pushing_to_one_peer_does_not_reach_the_mean_of_six() -> None:
    values = after_pushing(6, 3)
    assert values != [[Fraction(1, 6)] * 6] * 6
    assert all(share > 0 for row in values for share in row)


@given(st.integers(1, 40), STEPS, st.data())
def test_pushes_are_heard_by_those_they_are_meant_for(world: int, step: int, data: st.DataObject) -> None:
    peers = data.draw(st.integers(1, max(1, most_peers(world))))
    for rank in range(world):
        targets = push_peers(rank, step, world, peers)
        assert len({rank, *targets}) == 1 + (peers if world > 1 else 0)
        assert all(rank in push_sources(target, step, world, peers) for target in targets)
        assert all(rank in push_peers(source, step, world, peers) for source in push_sources(rank, step, world, peers))


def test_several_peers_are_at_consecutive_distances() -> None:
    assert [push_peers(0, step, 16, peers=2) for step in range(3)] == [(1, 2), (4, 8), (15, 14)]
    assert [push_peers(0, step, 8, peers=2) for step in range(3)] == [(1, 2), (4, 1), (6, 4)]


@given(st.integers(2, 40), st.integers(0, 100))
def test_every_distance_has_its_turn(world: int, start: int) -> None:
    count = most_peers(world)
    forwards = [step // count % 2 == 0 for step in range(start, start + count)]
    distances = [
        (push_peers if is_forwards else push_sources)(0, step, world)[0]
        for step, is_forwards in zip(range(start, start + count), forwards, strict=True)
    ]
    assert sorted(distances) == [1 << power for power in range(count)]
    assert max(distances) < world <= 2 * max(distances)


@pytest.mark.parametrize(("peers", "world"), [(0, 8), (4, 8), (2, 2), (0, 1)])
def test_impossible_number_of_peers_is_explained(peers: int, world: int) -> None:
    with pytest.raises(InvalidRules, match=f"peers={peers} cannot be pushed to in a world of {world}.*choose peers"):
        push_peers(0, 0, world, peers)


@given(st.integers(1, 40), STEPS, st.integers(0, 9))
def test_pairs_are_disjoint_and_at_most_one_is_alone(world: int, step: int, seed: int) -> None:
    partner = pairs(step, world, seed)
    assert [partner[partner[rank]] for rank in range(world)] == list(range(world))
    assert sum(partner[rank] == rank for rank in range(world)) == world % 2


def test_every_pair_is_as_likely_as_another() -> None:
    met = Counter(pairs(step, 5)[0] for step in range(5000))
    assert set(met) == set(range(5))
    assert max(met.values()) - min(met.values()) < 250
    assert pairs(1, 10, seed=0) != pairs(1, 10, seed=1)


def test_draws_never_change_between_processes_or_releases() -> None:
    assert pairs(2, 7, seed=5) == (6, 5, 2, 4, 3, 1, 0)
    assert [random_neighbour(2, step, (1, 3, 5), seed=0) for step in range(6)] == [3, 5, 3, 5, 1, 3]


@given(st.integers(0, 40), STEPS, st.sets(st.integers(0, 40), min_size=1), st.integers(0, 9))
def test_random_neighbour_is_a_neighbour_whatever_their_order(rank: int, step: int, peers: set[int], seed: int) -> None:
    picked = random_neighbour(rank, step, sorted(peers), seed)
    assert picked in peers
    assert random_neighbour(rank, step, sorted(peers, reverse=True), seed) == picked


def test_random_neighbours_are_equally_likely_and_ranks_pick_on_their_own() -> None:
    picks = Counter(random_neighbour(0, step, (4, 7, 9)) for step in range(3000))
    assert all(900 < count < 1100 for count in picks.values())
    first, second = ([random_neighbour(rank, step, (4, 7, 9)) for step in range(40)] for rank in (0, 1))
    assert first != second


def test_no_neighbour_is_explained() -> None:
    with pytest.raises(InvalidRules, match="rank 3 has no neighbour to pick in step 9"):
        random_neighbour(3, 9, ())


@given(st.integers(2, 16), st.data())
def test_no_weight_drains_away_from_those_who_are_left(world: int, data: st.DataObject) -> None:
    """Push-sum among the living, who keep the shares of those who are gone: every weight stays far from zero."""
    living = data.draw(st.sets(st.integers(0, world - 1), min_size=1))
    weights = dict.fromkeys(living, 1.0)
    for step in range(60 * most_peers(world)):
        pushes = {rank: push_peers(rank, step, world)[0] for rank in living}
        after = {rank: weight / (2 if pushes[rank] in living else 1) for rank, weight in weights.items()}
        for rank, target in pushes.items():
            if target in living:
                after[target] += weights[rank] / 2
        weights = after
    assert min(weights.values()) > 0.1
