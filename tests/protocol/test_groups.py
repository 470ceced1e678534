"""Groups of a step cover the world without overlap, and rotate until everybody has heard from everybody."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.errors import InvalidRules
from outpace.mixing.schedules import default_size, group, period


def partition(step: int, world: int, size: int) -> set[tuple[int, ...]]:
    return {group(rank, step, world, size) for rank in range(world)}


@st.composite
def shapes(draw: Any, least: int = 1) -> tuple[int, int]:
    world = draw(st.integers(max(1, least), 70))
    return world, draw(st.integers(min(least, world), world))


def averaging(step: int, world: int, size: int) -> Any:
    matrix = np.zeros((world, world))
    for members in partition(step, world, size):
        matrix[np.ix_(members, members)] = 1 / len(members)
    return matrix


def test_example_of_the_paper() -> None:
    assert partition(0, 8, 4) == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert partition(1, 8, 4) == {(0, 1, 4, 5), (2, 3, 6, 7)}
    assert partition(2, 8, 4) == {(0, 2, 4, 6), (1, 3, 5, 7)}
    assert partition(3, 8, 4) == partition(0, 8, 4)


@pytest.mark.parametrize(("world", "size"), [(8, 4), (64, 8), (32, 8), (16, 2), (1024, 32)])
def test_powers_of_two_flip_the_bits_of_the_butterfly(world: int, size: int) -> None:
    g, s = int(math.log2(world)), int(math.log2(size))
    for step in range(2 * g):
        flipped = sum(1 << (step * s + r) % g for r in range(s))
        for rank in (0, 3, world - 1):
            alike = (peer for peer in range(world) if (peer ^ rank) & ~flipped == 0)
            assert group(rank, step, world, size) == tuple(alike)


@given(shapes(), st.integers(0, 1000))
def test_groups_cover_the_world_without_overlap(shape: tuple[int, int], step: int) -> None:
    groups = partition(step, *shape)
    assert sorted(rank for members in groups for rank in members) == list(range(shape[0]))
    assert all(members == tuple(sorted(members)) for members in groups)
    assert all(group(rank, step, *shape) == members for members in groups for rank in members)


@given(shapes(least=2), st.integers(0, 100))
def test_groups_are_equally_large_and_nobody_is_alone(shape: tuple[int, int], step: int) -> None:
    world, size = shape
    sizes = [len(members) for members in partition(step, world, size)]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 2
    if world % size == 0:
        assert set(sizes) == {size}
    assert size / 2 < max(sizes) < 1.5 * size + 1


@given(shapes(least=2), st.integers(0, 30))
def test_everybody_hears_from_everybody_in_about_log_steps(shape: tuple[int, int], start: int) -> None:
    world, size = shape
    least = math.ceil(math.log(world, size) - 1e-9)
    assert mixes(0, least + 1, *shape)
    assert mixes(start, 2 * least + 1, *shape)


def mixes(start: int, steps: int, world: int, size: int) -> bool:
    product = np.eye(world)
    for step in range(start, start + steps):
        product = averaging(step, world, size) @ product
    return bool((product > 0).all())


@pytest.mark.parametrize(("world", "size"), [(16, 4), (27, 3), (81, 9), (36, 6), (100, 10)])
def test_a_world_that_is_a_power_of_the_size_reaches_the_exact_mean(world: int, size: int) -> None:
    product = np.eye(world)
    for step in range(period(world, size)):
        product = averaging(step, world, size) @ product
    assert period(world, size) == round(math.log(world, size))
    assert product == pytest.approx(np.full((world, world), 1 / world), abs=1e-15)


def test_groups_of_one_stay_alone_and_groups_of_all_are_the_world() -> None:
    for world in (1, 2, 3, 8, 12):
        assert partition(5, world, 1) == {(rank,) for rank in range(world)}
        assert partition(5, world, world) == {tuple(range(world))}


def test_default_sizes_are_those_of_the_paper() -> None:
    paper = {1: 1, 2: 2, 4: 2, 8: 4, 16: 4, 64: 8, 256: 16, 1024: 32}
    assert {world: default_size(world) for world in paper} == paper


@given(st.integers(1, 2000))
def test_default_size_is_near_the_root_and_allowed(world: int) -> None:
    size = default_size(world)
    assert 1 <= size <= world
    assert size > 1 or world == 1
    assert 0.7 <= size / math.sqrt(world) <= 1.5


@pytest.mark.parametrize("size", [0, -1, 5])
def test_impossible_size_is_explained(size: int) -> None:
    with pytest.raises(InvalidRules, match=rf"groups of {size} cannot be made of 4 ranks.*choose a size from 1 to 4"):
        group(0, 0, 4, size)


@pytest.mark.parametrize("world", [1000, 1024])
def test_a_thousand_ranks_find_their_groups_quickly(world: int) -> None:
    started = time.process_time()
    for step in range(50):
        for rank in range(world):
            group(rank, step, world, 32)
    assert time.process_time() - started < 2
