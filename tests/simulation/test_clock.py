"""Simulated time: order, sleeping, waiting, stopping and killing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.engines.virtual.clock import Clock, Task, Waiters, sleep, wait_in


def at_times(clock: Clock, times: list[int]) -> list[tuple[int, int]]:
    seen: list[tuple[int, int]] = []

    async def life(name: int, naps: int) -> None:
        await sleep(naps)
        seen.append((clock.now_ns, name))

    for name, naps in enumerate(times):
        Task(clock, life(name, naps)).start()
    clock.run()
    return seen


@given(st.lists(st.integers(0, 5)))
def test_things_happen_in_the_order_of_time_and_then_of_coming(times: list[int]) -> None:
    assert at_times(Clock(), times) == sorted((time, name) for name, time in enumerate(times))


def test_time_passes_only_where_somebody_sleeps() -> None:
    clock = Clock()
    clock.run()
    assert clock.now_ns == 0
    clock.run(until_ns=70)
    assert clock.now_ns == 70
    assert at_times(clock, [5]) == [(75, 0)]


def test_waiters_go_on_when_they_are_woken() -> None:
    clock, waiters, woken = Clock(), Waiters(), []

    async def wait(name: str) -> None:
        await wait_in(waiters)
        woken.append((name, clock.now_ns))

    for name in "abc":
        Task(clock, wait(name)).start()
    clock.at(40, lambda: clock.wake(waiters, 2))
    clock.run()
    assert woken == [("a", 42), ("b", 42), ("c", 42)]
    assert not waiters


def test_a_stopped_task_stands_still_until_it_goes_on() -> None:
    clock, ticks = Clock(), []

    async def tick() -> None:
        for _ in range(3):
            await sleep(10)
            ticks.append(clock.now_ns)

    task = Task(clock, tick()).start()
    clock.at(15, task.stop)
    clock.at(100, task.go_on)
    clock.run()
    assert ticks == [10, 100, 110]


def test_a_stop_that_ends_before_it_is_noticed_costs_nothing() -> None:
    clock = Clock()

    async def nap() -> None:
        await sleep(10)

    task = Task(clock, nap()).start()
    clock.at(2, task.stop)
    clock.at(5, task.go_on)
    clock.run()
    assert clock.now_ns == 10
    assert task.is_over


def test_a_killed_task_never_goes_on() -> None:
    clock, waiters, gone_on = Clock(), Waiters(), []

    async def wait() -> None:
        await wait_in(waiters)
        gone_on.append(True)

    task = Task(clock, wait()).start()
    clock.at(5, task.kill)
    clock.at(9, lambda: clock.wake(waiters))
    clock.run()
    assert task.is_over
    assert not gone_on


def test_what_a_task_raises_is_raised_where_time_passes() -> None:
    async def fail() -> None:
        await sleep(3)
        raise ValueError("boom")

    clock = Clock()
    task = Task(clock, fail()).start()
    with pytest.raises(ValueError, match="boom"):
        clock.run()
    assert task.is_over
    assert clock.now_ns == 3
