"""Time: with scripted computing and links that cost nothing, who waits for whom is exactly what is promised."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest

from outpace.mixing.schedules import pairs, push_sources
from outpace.protocol.events import Done, Event, Finish, Publish
from outpace.simulation import Scenario, Timing, simulate_timing
from outpace.strategies import strategy
from tests.support.by_hand import Table

PARTS = 8
MS = (80, 112, 96, 168, 104)  # what each rank needs for a step; 10, 14, 12, 21 and 13 for a micro-batch
SORTED = sorted(MS)


def timed(choice: str, steps: int = 12, paces: Sequence[object] = MS, **options: object) -> tuple[Timing, list[Event]]:
    seen: list[Event] = []
    options = {"network": "zero", "imbalance": Table(*paces), **options}  # type: ignore[arg-type]
    scenario = Scenario(ranks=len(paces), steps=steps, microbatches=PARTS, **options)  # type: ignore[arg-type]
    return simulate_timing(choice, scenario, watch=lambda event, _: seen.append(event)), seen


def done_ms(seen: Sequence[Event]) -> list[float]:
    """When each round was complete."""
    return [event.time_ns / 1e6 for event in seen if isinstance(event, Done)]


def published_ms(seen: Sequence[Event], rank: int) -> list[float]:
    return [event.time_ns / 1e6 for event in seen if isinstance(event, Publish) and event.rank == rank]


def every(milliseconds: float, times: int) -> list[float]:
    return [pytest.approx(milliseconds * (nth + 1)) for nth in range(times)]


# -- rounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "choice", ["allreduce", "nonblocking:work=1", "dropcompute", "m-sync:m=1.0", "eager:quorum=full"]
)
def test_everybody_waits_for_the_slowest(choice: str) -> None:
    run, seen = timed(choice)
    assert done_ms(seen) == every(max(MS), 12)
    assert run.waited_s == pytest.approx([12 * (max(MS) - mine) / 1e3 for mine in MS])


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_m_sync_takes_the_m_th_of_the_sorted_times(m: int) -> None:
    _, seen = timed(f"m-sync:m={m}")
    assert done_ms(seen)[:5] == every(SORTED[m - 1], 5)


def test_nonblocking_takes_the_least() -> None:
    run, seen = timed("nonblocking")
    assert done_ms(seen)[:10] == every(min(MS), 10)
    assert run.waited_s[0] == 0


@pytest.mark.parametrize("work", [0.5, 0.7, 0.9])
def test_a_share_of_the_work_takes_until_so_much_is_done(work: float) -> None:
    _, seen = timed(f"nonblocking:work={work}")
    finished = sorted(mine / PARTS * (nth + 1) for mine in MS for nth in range(PARTS))
    enough = finished[round(work * len(finished)) - 1]
    assert done_ms(seen)[0] == pytest.approx(max(min(MS), enough))


@pytest.mark.parametrize("batch", [1, 7, 40, 55])
def test_rennala_takes_until_so_many_gradients_are_there_from_anybody(batch: int) -> None:
    _, seen = timed(f"rennala:batch={batch}")
    gradients = sorted(mine / PARTS * (nth + 1) for mine in MS for nth in range(100))
    assert done_ms(seen)[0] == pytest.approx(gradients[batch - 1])


@pytest.mark.parametrize("tau", [45, 61, 83])
def test_dropcompute_takes_the_threshold_and_at_most_one_micro_batch(tau: int) -> None:
    _, seen = timed(f"dropcompute:tau_ms={tau}", steps=20)
    stops = [min(mine, mine / PARTS * (tau // (mine / PARTS) + 1)) for mine in MS]
    done = done_ms(seen)
    assert done[0] == pytest.approx(max(MS)), "nobody saw when the first one began"
    for before, after in pairwise(done[1:10]):
        assert after - before == pytest.approx(max(stops))
        assert after - before <= tau + max(MS) / PARTS


@pytest.mark.parametrize(
    "choice",
    ["ringmaster", "ringmaster:delay=1", "eager-solo:grace=0,repair=none", "rennala", "ad-psgd", "wagma:grace=0"],
)
def test_nobody_waits(choice: str) -> None:
    run, _ = timed(choice)
    assert run.waited_s == (0.0,) * len(MS)


@pytest.mark.parametrize("choice", ["ringmaster", "ad-psgd", "eager-solo:grace=0,repair=none", "wagma:grace=0"])
def test_where_nobody_waits_every_rank_ends_after_its_own_computing(choice: str) -> None:
    run, seen = timed(choice)
    assert run.seconds == pytest.approx(12 * max(MS) / 1e3)
    left = {event.rank: event.time_ns / 1e6 for event in seen if isinstance(event, Finish)}
    assert [left[rank] for rank in range(len(MS))] == pytest.approx([12 * mine for mine in MS])


# -- averages now and then ---------------------------------------------------------------------------------------------

JITTER = [[50, 90, 40, 70, 60, 30], [60, 20, 80, 50, 90, 40], [30, 70, 60, 90, 20, 80]]


@pytest.mark.parametrize(
    "choice",
    ["local-sgd:every=3", "diloco:every=3", "post-local-sgd:start=1,every=3", "wagma:sync_every=3,sync=wait,grace=0"],
)
def test_averages_now_and_then_take_the_largest_of_the_sums(choice: str) -> None:
    run, _ = timed(choice, steps=6, paces=JITTER)
    if choice.startswith("post"):
        blocks = [[row[:1], row[1:3], row[3:6]] for row in JITTER]
    else:
        blocks = [[row[:3], row[3:6]] for row in JITTER]
    expected = sum(max(map(sum, block)) for block in zip(*blocks, strict=True))
    assert run.seconds == pytest.approx(expected / 1e3)


def test_dasgd_waits_for_nobody_while_the_mean_comes_in_time() -> None:
    """Averaging takes 15 ms, and a step 20: local SGD waits for it, DaSGD goes on computing."""
    costly = {"paces": (20, 20, 20), "steps": 12, "network": "fixed:round_ms=15"}
    assert timed("local-sgd:every=3", **costly)[0].seconds == pytest.approx((12 * 20 + 4 * 15) / 1e3)  # type: ignore[arg-type]
    hidden, _ = timed("dasgd:every=3,delay=1", **costly)  # type: ignore[arg-type]
    assert hidden.seconds == pytest.approx(12 * 20 / 1e3)
    assert hidden.waited_s == (0.0,) * 3


# -- neighbours and pairs ----------------------------------------------------------------------------------------------


def lock_step(sources: list[list[list[int]]], paces: Sequence[Sequence[float]]) -> list[list[float]]:
    """When each rank ends each step, if it waits for those of the step that it needs: ends[step][rank]."""
    free, ends = [0.0] * len(paces), []
    for step, needs in enumerate(sources):
        ready = [free[rank] + paces[rank][step] for rank in range(len(paces))]
        free = [max(ready[other] for other in (rank, *needs[rank])) for rank in range(len(paces))]
        ends.append(free)
    return ends


WILD = [[50, 90, 40, 70, 60, 30], [60, 20, 80, 50, 90, 40], [30, 70, 60, 90, 20, 80], [55, 25, 95, 35, 45, 85]]


@pytest.mark.parametrize(
    "choice",
    [
        "d-psgd",
        "d-psgd:graph=star",
        "decentlam",
        "matcha:graph=ring,budget=0.4",
        "al-dsgd:graph=star",
        "sgp",
        "noloco:every=1",
    ],
)
def test_a_rank_waits_for_those_it_averages_with_and_for_nobody_else(choice: str) -> None:
    chosen, world = strategy(choice), len(WILD)

    def needs(step: int, rank: int) -> list[int]:
        if choice == "sgp":
            return list(push_sources(rank, step, world))
        if choice.startswith("noloco"):
            return [pairs(step, world)[rank]]
        return list(chosen.row(rank, step, world))  # type: ignore[attr-defined]

    ends = lock_step([[needs(step, rank) for rank in range(world)] for step in range(6)], WILD)
    run, seen = timed(choice, steps=6, paces=WILD)
    for rank in range(world):
        begun = [0.0, *(row[rank] for row in ends[:-1])]
        left = [event.time_ns / 1e6 for event in seen if isinstance(event, Finish) and event.rank == rank]
        assert left == [pytest.approx(ends[-1][rank])]
        waits = [
            end - start - mine for end, start, mine in zip((r[rank] for r in ends), begun, WILD[rank], strict=True)
        ]
        assert run.waited_s[rank] == pytest.approx(sum(waits) / 1e3)


def test_a_slow_rank_slows_its_neighbours_and_they_slow_theirs() -> None:
    """On a ring of five the slowest reaches everybody within two steps, and then sets the pace."""
    _, seen = timed("d-psgd", paces=(50, 50, 200, 50, 50))
    for rank in (0, 4):
        gaps = [b - a for a, b in pairwise(published_ms(seen, rank))]
        assert gaps[2:] == pytest.approx([200] * (len(gaps) - 2))


def test_dsgd_aau_waits_for_a_slow_rank_once_all_others_are_joined() -> None:
    """0 and 1 are joined at 60 ms, 2 to them at 100 ms: from then on only the slow rank can join anything."""
    _, seen = timed("dsgd-aau:graph=complete", paces=(50, 60, 70, 10_000), steps=6)
    early = [[ms for ms in published_ms(seen, rank) if ms < 10_000] for rank in range(3)]
    assert early == [[50, 110, 160], [60, 120], [70, 180]]
    assert published_ms(seen, 0)[3] > 10_000


def test_wagma_waits_for_the_slowest_only_where_all_meet() -> None:
    run, seen = timed("wagma:grace=0,sync_every=4,sync=wait", paces=(50, 60, 70, 400), steps=8)
    assert run.seconds == pytest.approx(8 * 0.4)
    assert published_ms(seen, 0) == pytest.approx([*accumulate([50] * 4), *(1600 + n for n in accumulate([50] * 4))])
