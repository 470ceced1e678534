"""A rank that is slow, deaf or short of processor time costs the others nothing, and its work still counts."""

import multiprocessing
from collections import Counter

import pytest

from tests.faults.soak import injectors
from tests.support import troubled
from tests.support.agreement import agree, contributions
from tests.support.watching import watched

WORLD, VICTIM = 4, 3
OTHERS = [rank for rank in range(WORLD) if rank != VICTIM]


def assert_exactly_once(told) -> None:
    given = contributions([each.report for each in told])
    dropped = sum(r.dropped for r in told[0].report.stats.ranks)
    assert max(Counter(given).values()) == 1
    assert len(given) + dropped == sum(each.steps for each in told)


@pytest.mark.parametrize("strategy", ["eager-solo", "eager-majority"])
def test_a_rank_whose_interpreter_is_held_by_c_code_holds_nobody_up(strategy, tmp_path):
    arguments = (strategy, VICTIM, 10, 3.0)
    told, watcher = watched(troubled.hold_the_gil, WORLD, tmp_path, arguments, lambda w: w.until_steps([VICTIM], 11))
    began_s, ended_s = told[VICTIM].window
    assert ended_s - began_s >= 3.0
    assert not [at for at in told[VICTIM].ticks if began_s + 0.1 < at < ended_s - 0.1], "the lock was not held"
    for rank in OTHERS:
        inside = [end for _, end in watcher.lives[rank].steps if began_s < end < ended_s]
        assert len(inside) >= 30, f"rank {rank} made {len(inside)} steps of 10 ms in 3 s"
    agree([each.report for each in told])
    assert_exactly_once(told)


@pytest.mark.parametrize("strategy", ["eager:quorum=solo,max_staleness=64", "eager:quorum=majority,max_staleness=64"])
def test_the_work_of_a_rank_four_times_as_slow_counts_and_nobody_goes_at_its_pace(strategy, tmp_path):
    given = (strategy, VICTIM)
    told, _ = watched(troubled.four_times_as_slow, WORLD, tmp_path, given, lambda w: w.until_steps([VICTIM], 20))
    agree([each.report for each in told])
    assert_exactly_once(told)
    slow = told[VICTIM]  # it makes a step when another rank has made four: at its pace, none of this would have ended
    stats = slow.report.stats
    assert stats.ranks[VICTIM].on_time + stats.ranks[VICTIM].carried == slow.steps, "work of the slow rank was lost"
    assert stats.ranks[VICTIM].share == pytest.approx(slow.steps / sum(each.steps for each in told))
    assert max(stats.staleness) <= 64


def test_a_rank_stopped_for_a_hundred_steps_of_the_others_is_back_in_step_and_nothing_is_lost(tmp_path):
    def stop_and_wake(watcher) -> None:
        watcher.until_steps([*range(WORLD)], 10)
        victim = watcher.lives[VICTIM]
        fault = injectors.stop(victim)
        assert fault is not None, "it was not stopped"
        watcher.until_steps(OTHERS, 100)
        assert injectors.wake(victim), "it did not stay stopped"
        watcher.until_steps([VICTIM], 10)

    told, _ = watched(troubled.march, WORLD, tmp_path, ("eager-majority", [0.01] * WORLD), stop_and_wake)
    agree([each.report for each in told])
    assert_exactly_once(told)
    assert told[0].steps - told[VICTIM].steps >= 80, "it lost no step: it was not stopped"


def test_nobody_is_taken_for_dead_on_a_machine_with_far_too_much_to_do(tmp_path):
    context = multiprocessing.get_context("forkserver")
    busy = [context.Process(target=troubled.spin, args=(str(tmp_path),)) for _ in range(4)]
    for process in busy:
        process.start()
    try:
        told, _ = watched(
            troubled.march, 8, tmp_path, ("eager-majority", [0.01] * 8), lambda w: w.until_steps([*range(8)], 40)
        )
    finally:
        (tmp_path / "stop").touch()
        for process in busy:
            process.join()
    assert [r.state for r in told[0].report.stats.ranks] == ["finished"] * 8
    assert [r.incarnation for r in told[0].report.stats.ranks] == [1] * 8
    agree([each.report for each in told])
    assert_exactly_once(told)
