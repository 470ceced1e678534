"""WAGMA-SGD: groups average what is there, stale ranks merge, and every tau-th iteration all are equal."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from outpace.strategies.wagma import Wagma
from tests.support.by_hand import Maker, Table, Walk, assert_near, at, noise, quadratics, sgd, walk

MINIMA = noise(8, 3, seed=10)
CURVATURES = torch.linspace(0.5, 2.0, 8, dtype=torch.float64)
START = [1.0, -2.0, 0.5]
STEPS = 12
PATIENT = "grace=100"  # seconds: nobody is ever stale
SGD, MOMENTUM = sgd(0.1), sgd(0.1, momentum=0.9)


def trained(choice: str, world: int = 8, make: Maker = SGD, steps: int = STEPS, **options: object) -> list[Walk]:
    options = {"start": START, "make": make, "imbalance": "exponential:mean_ms=80", **options}
    return walk(choice, world, steps, quadratics(MINIMA, CURVATURES), **options)  # type: ignore[arg-type]


def slopes(x: Tensor) -> Tensor:
    return CURVATURES[: len(x), None] * (x - MINIMA[: len(x)])


@pytest.mark.parametrize("make", [SGD, MOMENTUM], ids=["sgd", "momentum"])
def test_one_group_of_all_with_nobody_stale_is_allreduce(make: Maker) -> None:
    groups, together = trained(f"wagma:group_size=8,{PATIENT}", make=make), trained("allreduce", make=make)
    for step in range(STEPS):
        assert_near(at(groups, step), at(together, step))


@pytest.mark.parametrize("grace", ["0", "100"])
def test_groups_of_one_are_local_sgd(grace: str) -> None:
    groups, local = trained(f"wagma:group_size=1,sync_every=4,sync=wait,grace={grace}"), trained("local-sgd:every=4")
    for step in range(STEPS):
        assert_near(at(groups, step), at(local, step), 1e-14)


@pytest.mark.parametrize("order", ["step-average", "average-step"])
@pytest.mark.parametrize(("world", "size"), [(8, 2), (8, 4), (6, 3), (7, 2)])
def test_with_nobody_stale_a_group_has_the_mean_of_its_members(world: int, size: int, order: str) -> None:
    choice = Wagma(group_size=size, sync_every=5, order=order, grace=100)
    walks, x = trained(choice, world), torch.tensor(START, dtype=torch.float64).expand(world, 3)  # type: ignore[arg-type]
    for step in range(STEPS):
        moved = x - 0.1 * slopes(x)
        given = moved if order == "step-average" else x
        members = [list(choice.group(rank, step, world)) for rank in range(world)]
        mean = torch.stack([(given if (step + 1) % 5 == 0 else given[group]).mean(0) for group in members])
        x = mean if order == "step-average" else mean - 0.1 * slopes(x)
        assert_near(at(walks, step), x)


@pytest.mark.parametrize("grace", ["0", "auto"])
@pytest.mark.parametrize("make", [SGD, MOMENTUM], ids=["sgd", "momentum"])
def test_after_a_synchronous_iteration_all_models_are_equal_bit_for_bit(make: Maker, grace: str) -> None:
    walks = trained(f"wagma:sync_every=4,sync=wait,grace={grace}", make=make)
    for step in (3, 7, 11):
        assert all(torch.equal(mine.weights[step], walks[0].weights[step]) for mine in walks)
    assert not all(torch.equal(mine.weights[4], walks[0].weights[4]) for mine in walks)


class Publication(NamedTuple):
    step: int  # a rank's how many-th step it is, and so its how many-th publication
    weights: Tensor


def merged(group: dict[int, Publication], rank: int, step: int, mine: Tensor) -> Tensor:
    """(sum / S) for a rank that is in it with this step, ((sum + own) / (S + 1)) for one that came late."""
    total = sum((given.weights for given in group.values()), torch.zeros(3, dtype=torch.float64))
    if rank in group and group[rank].step == step:
        return total / len(group)
    return (total + mine) / (len(group) + 1)


@pytest.mark.parametrize("paces", [(100,), (100, 263), (100, 143, 263, 310)], ids=["one", "two", "four"])
def test_fresh_and_stale_ranks_average_as_the_formulas_say(paces: tuple[int, ...]) -> None:
    """Plays it again by hand. The last two frozen iterations are kept, and of each rank its last two publications."""
    world, steps = len(paces), [1200 // pace for pace in paces]
    choice = Wagma(group_size=min(2, world), sync_every=1000, sync="wait", grace=0)
    walks = walk(
        choice,
        world,
        steps,
        quadratics(MINIMA, CURVATURES),
        start=START,
        imbalance=Table(*paces),
        finishes=False,
    )
    x = [torch.tensor(START, dtype=torch.float64)] * world
    published: dict[int, Publication] = {}
    frozen: list[dict[int, Publication]] = []
    late = 0
    events = sorted((pace * (step + 1), rank, step) for rank, pace in enumerate(paces) for step in range(steps[rank]))
    all_there = min(pace * made for pace, made in zip(paces, steps, strict=True))  # then the first one leaves
    for _, rank, step in (event for event in events if event[0] <= all_there):
        mine = x[rank] - 0.1 * CURVATURES[rank] * (x[rank] - MINIMA[rank])
        published[rank] = Publication(step, mine)
        late += step < len(frozen)
        if step == len(frozen):
            frozen.append(dict(published))
        there = frozen[step] if step >= len(frozen) - 2 else frozen[-1]
        group = choice.group(rank, step, world)
        if any(published[member].step - there[member].step > 1 for member in group if member in there):
            there = published  # overwritten meanwhile
        members = {member: there[member] for member in group if member in there}
        alone = set(members) == {rank}  # see `test_groups_of_one_are_local_sgd`
        x[rank] = walks[rank].weights[step] if alone else merged(members, rank, step, mine)
        assert_near(walks[rank].weights[step], x[rank])
    assert (late > 0) == (world > 1)


def test_a_stale_merge_does_not_keep_the_sum() -> None:
    walks = walk(
        "wagma:group_size=2,grace=0,sync_every=100,sync=wait",
        2,
        (8, 3),
        lambda rank, step, x: torch.full_like(x, float(rank + 1)) if step == 0 else torch.zeros_like(x),
        make=sgd(1.0),
        imbalance=Table(100, 263),
    )
    assert (2 * walks[0].end + 3).abs().max() > 1e-3


def test_nobody_waits_for_a_slow_rank_between_synchronous_iterations() -> None:
    walks = trained(
        "wagma:sync_every=100,sync=wait,grace=0", 4, imbalance=Table(100, 110, 120, 5000), look=lambda e: e.now_s()
    )
    assert [round(mine.seen[-1], 6) for mine in walks] == [1.2, 1.32, 1.44, 60.0]
