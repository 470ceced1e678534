"""WAGMA-SGD as it is by default: nobody waits for an average of all either, and who comes late is with the others."""

from __future__ import annotations

import asyncio
from itertools import accumulate
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from outpace.protocol.events import Event, Publish
from outpace.simulation import Scenario, simulate_timing
from outpace.strategies.wagma import Wagma
from tests.support.by_hand import Look, Table, Walk, assert_near, noise, quadratics, sgd, walk

MINIMA = noise(8, 3, seed=10)
CURVATURES = torch.linspace(0.5, 2.0, 8, dtype=torch.float64)
START = [1.0, -2.0, 0.5]
#: No two ranks ever end a step at the same time.
PACES = [(100,), (100, 263.3), (100, 143.7, 263.3, 310.9), (100, 143.7, 110.3, 1310.9), (100, 101.1, 102.3, 2310.9)]


class Publication(NamedTuple):
    iteration: int
    weights: Tensor


class ByHand:
    """The algorithm as its docstring says it, without grace."""

    def __init__(self, choice: Wagma, world: int) -> None:
        self.choice, self.world = choice, world
        self.iterations, self.open = [0] * world, 0
        self.x = [torch.tensor(START, dtype=torch.float64)] * world
        self.published: dict[int, Publication] = {}
        self.to_average: dict[int, Tensor] = {}  # published since the last iteration was frozen
        self.late = self.too_late = self.of_all = 0

    def step(self, rank: int) -> None:
        mine = self.x[rank] - 0.1 * CURVATURES[rank] * (self.x[rank] - MINIMA[rank])
        iteration, tau = self.iterations[rank], self.choice.sync_every
        is_late, is_too_late = iteration < self.open, self.open - iteration > tau
        now = self.open - 1 if is_late else self.open
        missed = any((passed + 1) % tau == 0 for passed in range(iteration, now + 1))
        members = set(range(self.world) if missed else self.choice.group(rank, now, self.world))
        if is_late:
            there = {r: p.weights for r, p in self.published.items() if self.open - p.iteration <= tau}
            others = [there[member] for member in sorted(members - {rank}) if member in there]
            own_step = 0 if is_too_late else mine - self.x[rank]
            self.x[rank] = torch.stack(others).mean(0) + own_step if others else mine
            if not is_too_late:
                self.to_average[rank] = self.x[rank]
            self.published[rank] = Publication(iteration, self.x[rank])
        else:
            self.published[rank] = Publication(iteration, mine)
            self.to_average[rank] = mine
            given = [self.to_average[member] for member in sorted(members) if member in self.to_average]
            self.x[rank] = torch.stack(given).mean(0)
            self.to_average = {}
        self.open = now + 1
        self.iterations[rank] = now + 1
        self.late += is_late
        self.too_late += is_too_late
        self.of_all += missed


@pytest.mark.parametrize("tau", [1, 4, 1000])
@pytest.mark.parametrize("paces", PACES, ids=lambda paces: "-".join(map(str, paces)))
def test_fresh_and_late_ranks_average_as_the_docstring_says(paces: tuple[float, ...], tau: int) -> None:
    world, steps = len(paces), [int(4000 // pace) for pace in paces]
    choice = Wagma(group_size=min(2, world), sync_every=tau, grace=0)
    options = {"start": START, "imbalance": Table(*paces), "look": lambda e: (e.steps, e.weights.open_iteration)}
    walks = walk(choice, world, steps, quadratics(MINIMA, CURVATURES), finishes=False, **options)  # type: ignore[arg-type]
    model = ByHand(choice, world)
    events = sorted((pace * (step + 1), rank, step) for rank, pace in enumerate(paces) for step in range(steps[rank]))
    all_there = min(pace * made for pace, made in zip(paces, steps, strict=True))  # then the first one leaves
    for _, rank, step in (event for event in events if event[0] <= all_there):
        model.step(rank)
        assert_near(walks[rank].weights[step], model.x[rank])
        assert walks[rank].seen[step] == (model.iterations[rank], model.open)
    assert (model.late > 0) == (world > 1)
    if not tau <= max(paces) / min(paces) <= tau + 1:
        assert (model.too_late > 0) == (max(paces) / min(paces) > tau)
    assert (model.of_all > 0) == (tau < 1000)


def trained(choice: str, world: int, steps: object = 12, look: Look | None = None, **options: object) -> list[Walk]:
    options = {"start": START, "make": sgd(0.1, momentum=0.5), "imbalance": "exponential:mean_ms=80", **options}
    return walk(choice, world, steps, quadratics(MINIMA, CURVATURES), look=look, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [12, (12, 1, 7, 12)], ids=["even", "uneven"])
@pytest.mark.parametrize("choice", ["wagma", "wagma:grace=0,sync_every=3", "wagma:order=average-step,sync_every=1"])
def test_at_the_end_all_models_are_equal_bit_for_bit(choice: str, steps: object) -> None:
    walks = trained(choice, 4, steps)
    assert all(torch.equal(mine.end, walks[0].end) for mine in walks)
    assert not all(torch.equal(mine.weights[0], walks[0].weights[0]) for mine in walks)


@pytest.mark.parametrize("make", [sgd(0.1), sgd(0.1, momentum=0.9)], ids=["sgd", "momentum"])
def test_with_nobody_late_it_is_the_same_as_with_waiting(make: object) -> None:
    runs = [trained(f"wagma:sync_every=4,grace=100,sync={sync}", 8, make=make) for sync in ("avoid", "wait")]
    for one, other in zip(*runs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.weights, other.weights, strict=True))


def test_who_averaged_all_in_time_have_the_same_bits() -> None:
    paces = [[100] * 12, [101] * 12, [102] * 12, [100, 900, *[100] * 10]]
    walks = trained("wagma:sync_every=4,grace=0.01", 4, imbalance=Table(*paces), look=lambda e: e.steps)
    for step in (3, 7, 11):
        assert all(torch.equal(mine.weights[step], walks[0].weights[step]) for mine in walks[:3])


def test_a_rank_is_with_the_others_after_a_long_pause() -> None:
    paces = [[100] * 40, [101] * 40, [102] * 40, [100, 2000, *[100] * 38]]
    walks = trained(
        "wagma:grace=0.01", 4, 20, imbalance=Table(*paces), look=lambda e: (e.steps, e.weights.open_iteration)
    )
    steps, opened = walks[3].seen[1]
    assert steps == opened >= 19, "it goes on with the iteration that is open"
    assert [steps for steps, _ in walks[0].seen] == list(range(1, 21)), "who is never late counts its steps"


def times(choice: str, paces: tuple[object, ...], steps: int) -> tuple[dict[int, list[float]], list[float], list[int]]:
    """When each rank published, in ms, how long it waited, and how many of its steps were dropped."""
    seen: dict[int, list[float]] = {rank: [] for rank in range(len(paces))}

    def watch(event: Event, _: str) -> None:
        if isinstance(event, Publish):
            seen[event.rank].append(event.time_ns / 1e6)

    table = Table(*paces)  # type: ignore[arg-type]
    scenario = Scenario(ranks=len(paces), steps=steps, imbalance=table, network="zero")
    timing = simulate_timing(choice, scenario, watch=watch)
    return seen, list(timing.waited_s), [tally.dropped for tally in timing.tallies]


def test_nobody_waits_for_a_slow_rank_where_all_average_with_all() -> None:
    paces = (50, 60, 70, 5000)
    published, waited, dropped = times("wagma:grace=0,sync_every=4", paces, steps=20)
    for rank, pace in enumerate(paces):
        assert published[rank] == pytest.approx([*accumulate([pace] * 20)])
    assert waited == [0.0] * 4
    assert dropped == [0, 0, 0, 1], (
        "its first step is older than the bound; when it ends the second, the others are gone"
    )


def test_grace_is_all_that_a_slow_rank_costs() -> None:
    _, waited, _ = times("wagma:grace=0.005,sync_every=4", (50, 50, 50, 5000), steps=20)
    assert max(waited) <= 20 * 0.005 + 1e-9


class Overtaken:
    """An engine whose rows are always written again before they are read."""

    rank, world, placement = 0, 8, None

    def __init__(self) -> None:
        self.weights = self
        self.tried: list[tuple[int, bool]] = []

    async def average(self, ranks: object, frozen: object, own: object = None) -> None:
        self.tried.append((len(ranks), own is not None))  # type: ignore[arg-type]


@pytest.mark.parametrize("of_all", [True, False])
def test_a_rank_that_reads_too_slowly_gives_up_soon(of_all: bool) -> None:
    engine = Overtaken()
    asyncio.run(Wagma(group_size=2)._take_mean(engine, 0, of_all))  # type: ignore[arg-type]
    assert engine.tried == [(8 if of_all else 2, False)] * 2 + [(2, False)]
