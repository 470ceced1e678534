"""Uniform numbers by rank and step: the same everywhere, different from each other, without a pattern."""

import statistics
from itertools import product

import pytest

from outpace.randomness import uniform

EDGES = [0, 1, 2, 1023, 2**16 - 1], [0, 1, 2, 999, 2**32, 2**40 - 1]
COUNT = 20_000


def test_draws_are_the_same_on_every_machine():
    assert [uniform(0, 0, 0), uniform(-7, 65_535, 2**40 - 1), uniform(2**70, 3, 9, draw=2)] == [
        0.37212668683930217,
        0.6079835802720809,
        0.6671117066981539,
    ]


def test_ranks_and_steps_have_draws_of_their_own():
    everywhere = [*product(*EDGES), *product(range(100, 400), range(100, 400))]
    assert len({uniform(5, rank, step) for rank, step in everywhere}) == len(everywhere)


@pytest.mark.parametrize(
    "neighbour",
    [
        lambda rank, step: uniform(3, rank + 1, step),
        lambda rank, step: uniform(3, rank, step + 1),
        lambda rank, step: uniform(3, rank + 1, step + 1),
        lambda rank, step: uniform(4, rank, step),
        lambda rank, step: uniform(-3, rank, step),
        lambda rank, step: uniform(3, rank, step, draw=1),
        lambda rank, step: uniform(3, step, rank),
    ],
    ids=["rank", "step", "both", "seed", "sign of the seed", "draw", "swapped"],
)
def test_neighbours_are_independent(neighbour):
    places = [(2 * index % 200, 2 * index // 200 + 1000) for index in range(COUNT)]
    here, there = [uniform(3, *place) for place in places], [neighbour(*place) for place in places]
    bound = 5 / COUNT**0.5
    assert abs(statistics.correlation(here, there)) < bound
    assert abs(statistics.correlation([abs(u - 0.5) for u in here], [abs(u - 0.5) for u in there])) < bound


def test_draws_fill_the_interval_evenly():
    cells = 100
    counts = [0] * cells
    for rank, step in product(range(100), range(COUNT // 100)):
        counts[int(uniform(1, rank, step) * cells)] += 1
    expected = COUNT / cells
    chi_square = sum((count - expected) ** 2 / expected for count in counts)
    assert abs(chi_square - (cells - 1)) < 5 * (2 * (cells - 1)) ** 0.5
