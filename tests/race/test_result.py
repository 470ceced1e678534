"""The figures of a race: who is compared with whom, and by what."""

from dataclasses import replace

import pytest

from outpace.race.result import Attempt, Point
from outpace.workloads.base import LOSS
from tests.support.raced_by_hand import attempt, race

SLOW = attempt(10.0, (0.0, 0.1), (4.0, 0.5), (8.0, 0.89), (10.0, 0.9))
FAST = attempt(5.0, (0.0, 0.1), (2.0, 0.6), (4.0, 0.89), (5.0, 0.895))
FAILED = Attempt(0, "03-x", error="rank 1 raised: a bad day")


def test_ddp_is_the_baseline_and_else_allreduce():
    both = race(("allreduce", [FAST]), ("ddp", [SLOW]))
    assert both.baseline.system == "ddp"
    assert race(("eager-solo", [FAST]), ("allreduce", [SLOW])).baseline.system == "allreduce"
    assert race(("eager-solo", [FAST])).baseline is None


def test_a_baseline_that_failed_is_none():
    assert race(("ddp", [FAILED]), ("allreduce", [SLOW])).baseline.system == "allreduce"


def test_the_target_is_most_of_what_the_baseline_learned():
    raced = race(("ddp", [SLOW]), ("eager-solo", [FAST]))
    assert raced.target == pytest.approx(0.1 + 0.98 * 0.8)
    assert [raced.seconds_to_target(entry) for entry in raced.entries] == [8.0, 4.0]
    assert raced.winner.system == "eager-solo"


def test_a_given_target_goes_before():
    raced = race(("ddp", [SLOW]), ("eager-solo", [FAST]), target=0.9)
    assert [raced.seconds_to_target(entry) for entry in raced.entries] == [10.0, None]
    assert raced.winner.system == "ddp"


def test_a_target_is_reached_where_it_is_held():
    luck = attempt(8.0, (0, 0.1), (1, 0.9), (2, 0.5), (3, 0.9), (4, 0.9), (5, 0.9), (6, 0.5), (8, 0.9))
    lost = attempt(8.0, (0, 0.1), (1, 0.9), (2, 0.9), (3, 0.9), (8, 0.5))
    raced = race(("ddp", [SLOW]), ("eager-solo", [luck]), ("wagma", [lost]), target=0.9)
    assert [raced.seconds_to_target(entry) for entry in raced.entries] == [10.0, 8.0, None]


def test_a_target_is_held_through_a_dip_that_three_points_make_up_for():
    dips = attempt(8.0, (0, 0.1), (1, 0.9), (2, 0.91), (3, 0.895), (4, 0.9), (5, 0.91), (8, 0.9))
    falls = attempt(8.0, (0, 0.1), (1, 0.9), (2, 0.91), (3, 0.91), (4, 0.85), (5, 0.91), (8, 0.9))
    raced = race(("ddp", [SLOW]), ("eager-solo", [dips]), ("wagma", [falls]), target=0.9)
    assert [raced.seconds_to_target(entry) for entry in raced.entries] == [10.0, 1.0, 5.0]


def test_who_learned_less_than_the_baseline_does_not_win():
    less = attempt(2.0, (0.0, 0.1), (2.0, 0.885))
    raced = race(("ddp", [SLOW]), ("eager-solo", [less]), ("wagma", [FAST]))
    assert raced.seconds_to_target(raced.entries[1]) == 2.0
    assert raced.learned_less(raced.entries[1])
    assert raced.winner.system == "wagma"


def test_a_loss_that_is_higher_by_more_than_a_twentieth_was_learned_less_however_far_both_came():
    def lost(*curve):
        return replace(SLOW, curve=tuple(Point(at, at, value, value) for at, value in curve))

    ddp, near, far = lost((0, 100.0), (9, 1.72)), lost((0, 100.0), (4, 1.80)), lost((0, 100.0), (4, 1.84))
    raced = replace(race(("ddp", [ddp]), ("wagma", [near]), ("nonblocking", [far])), metric=LOSS)
    assert [raced.learned_less(entry) for entry in raced.entries] == [False, False, True]


def test_without_a_baseline_the_best_model_is_what_others_are_measured_by():
    raced = race(("eager-solo", [attempt(2.0, (0.0, 0.1), (2.0, 0.88))]), ("wagma", [FAST]), target=0.8)
    assert raced.winner.system == "wagma"


def test_the_metric_is_that_of_equal_samples():
    longer = attempt(10.0, (0.0, 0.1), (5.0, 0.7), (10.0, 0.9), samples=200.0)
    raced = race(("ddp", [SLOW]), ("eager-solo", [longer]))
    assert [raced.metrics_of(entry) for entry in raced.entries] == [[0.9], [0.7]]


def test_ranks_that_computed_much_longer_than_asked_make_a_race_void():
    late = replace(SLOW, ranks=tuple(replace(rank, overrun=1.3) for rank in SLOW.ranks))
    raced = race(("ddp", [late]), ("eager-solo", [FAST]))
    assert raced.was_too_busy
    assert raced.winner is None


def test_where_one_attempt_misses_the_target_there_is_no_time_to_it():
    raced = race(("ddp", [SLOW]), ("eager-solo", [FAST, attempt(5.0, (0.0, 0.1), (5.0, 0.2), seed=1)]))
    assert raced.seconds_to_target(raced.entries[1]) is None


def test_speed_is_work_for_time():
    raced = race(("ddp", [SLOW]), ("eager-solo", [FAST]), ("nonblocking", [attempt(5.0, (5.0, 0.5), samples=50.0)]))
    assert [raced.speedup(entry) for entry in raced.entries] == [1.0, 2.0, 1.0]


def test_a_system_that_failed_is_an_entry_with_an_error_and_no_winner():
    raced = race(("ddp", [FAILED]), ("eager-solo", [FAILED]))
    assert raced.finished == ()
    assert raced.winner is None
    assert raced.target is None
    assert [entry.error for entry in raced.entries] == [FAILED.error] * 2


def test_an_entry_with_one_good_attempt_is_that_attempt():
    (entry,) = race(("ddp", [FAILED, SLOW])).entries
    assert entry.error is None
    assert entry.seconds == 10.0
    assert entry.final == 0.9


def test_late_contributions_of_all_attempts_are_counted():
    late = replace(FAST, staleness=((0, 5), (2, 5)))
    (entry,) = race(("eager-solo", [FAST, late])).entries
    assert entry.staleness == {0: 15, 2: 5}
    assert entry.late_share == 0.25


@pytest.mark.parametrize("waited", [0.0, 3.0])
def test_the_slowest_rank_is_the_one_that_computes_longest_for_a_step(waited):
    first, second = SLOW.ranks
    quick = replace(first, computed_s=5.0, waited_s=waited, steps=10)
    slow = replace(second, computed_s=4.0, waited_s=waited, steps=2)
    assert replace(SLOW, ranks=(quick, slow)).slowest is slow
