"""A rank stopped or killed at every named point: the others go on, all agree, nothing is lost unrecorded."""

from collections import Counter

import pytest

import outpace
from outpace.engines.arena.kernel import POINTS
from tests.support import ranks
from tests.support.agreement import agree, contributions

WORLD, VICTIM, LAGGARD = 4, 3, 2
PADDING = 3 * ranks.SHORT_CHUNK  # several chunks, so that a reduction can be stopped between two of them


def run(strategy: str, faults: dict[int, str], tmp_path, meanwhile: int = 40):
    given = (strategy, faults, str(tmp_path), PADDING, meanwhile)
    return outpace.spawn(ranks.count_with_fault, WORLD, given)


def lost(action: str, point: str) -> dict[int, str]:
    """The victim's fault. A snapshot is written only for somebody who lags."""
    laggard = {LAGGARD: "stop:depositing:10"} if point == "writing-snapshot" else {}
    return {**laggard, VICTIM: f"{action}:{point}:20"}


def assert_exactly_once(reports: list[ranks.Report], of_others: int = 0) -> None:
    """Every step of these ranks, and so many of ranks that are gone, is in one round or recorded as dropped."""
    given = contributions(reports)
    dropped = sum(r.dropped for r in reports[0].stats.ranks)
    assert max(Counter(given).values()) == 1
    assert len(given) + dropped == sum(report.stats.steps for report in reports) + of_others


#: every point in rounds of half of the ranks; without a quorum, where they differ: in whoever reduces and applies
POINTS_AND_STRATEGIES = [
    pytest.param(
        point,
        strategy,
        marks=() if strategy == "eager-majority" or point in ("reducing", "applying") else pytest.mark.long,
    )
    for strategy in ("eager-solo", "eager-majority")
    for point in POINTS
    if point != "opening-attempt"
]


@pytest.mark.parametrize(("point", "strategy"), POINTS_AND_STRATEGIES)
def test_a_stopped_rank_holds_nobody_up_and_loses_nothing(strategy, point, tmp_path):
    reports = run(strategy, lost("stop", point), tmp_path)
    assert reports[0].rounds_meanwhile >= 40, "the others did not go on, or the rank was never stopped"
    agree(reports)
    assert_exactly_once(reports)


@pytest.mark.parametrize(("point", "strategy"), POINTS_AND_STRATEGIES)
def test_the_others_go_on_and_agree_after_a_rank_is_killed(strategy, point, tmp_path):
    reports = run(strategy, lost("kill", point), tmp_path)
    assert reports[VICTIM] is None, "the rank was never killed"
    left = [report for report in reports if report is not None]
    agree(left)
    of_victim = [c for c in contributions(left) if c[0] == VICTIM]
    gone = next(r for r in left[0].stats.ranks if r.rank == VICTIM)
    assert gone.state == "dead"
    steps_of_victim = max(step for _, _, step in of_victim)
    assert_exactly_once(left, max(steps_of_victim, len(of_victim) + gone.dropped))


def test_a_sleeper_that_wakes_in_a_reduction_does_not_spoil_a_result_that_is_still_kept(tmp_path):
    # Woken after a few rounds only, it still applies the round it was reducing: what it reads must be whole.
    strategy = "eager:quorum=solo,max_staleness=32"
    reports = run(strategy, {VICTIM: "stop:reducing:20"}, tmp_path, meanwhile=4)
    assert reports[0].rounds_meanwhile >= 4
    agree(reports)
    assert_exactly_once(reports)


@pytest.mark.parametrize("point", ["depositing", "after-append", "before-wake", "applying", "writing-snapshot"])
def test_a_rank_whose_place_in_the_log_is_gone_reads_the_ledger_from_a_snapshot(point, tmp_path):
    given = ("eager:quorum=solo,max_staleness=3", {VICTIM: f"stop:{point}:20"}, str(tmp_path), 0, 150)
    reports = outpace.spawn(ranks.count_with_fault_and_a_short_log, WORLD, given)
    assert reports[0].rounds_meanwhile >= 150
    assert reports[VICTIM].reloads > 0, "the log was never cut before it was read"
    agree(reports)
    assert_exactly_once(reports)


@pytest.mark.parametrize("action", ["stop", "kill"])
def test_a_rank_lost_while_opening_an_attempt_holds_nobody_up(action, tmp_path):
    # Rank 2 sleeps while it holds a result's slot. That slot is wanted again in every round, and when the victim is
    # the one to open another attempt because of it, it is lost in that moment. Nobody is woken before.
    faults = {2: "stop:applying:20", VICTIM: f"{action}:opening-attempt:20"}
    strategy = "eager:quorum=solo,max_staleness=2"
    reports = run(strategy, faults, tmp_path)
    left = [report for report in reports if report is not None]
    assert len(left) == (WORLD if action == "stop" else WORLD - 1), "the fault did not happen"
    assert reports[0].rounds_meanwhile >= 40
    agree(left)
    if action == "stop":
        assert_exactly_once(left)


def test_all_but_one_rank_may_be_stopped_in_solo(tmp_path):
    faults = {1: "stop:applying:20", 2: "stop:writing-snapshot:20", 3: "stop:reducing:20"}
    reports = run("eager:quorum=solo,max_staleness=3", faults, tmp_path)
    assert reports[0].rounds_meanwhile >= 40
    agree(reports)
    assert_exactly_once(reports)


def test_all_but_one_rank_may_be_killed_in_solo(tmp_path):
    faults = {1: "kill:applying:20", 2: "kill:depositing:20", 3: "kill:after-append:20"}
    reports = run("eager-solo", faults, tmp_path)
    assert [report is None for report in reports] == [False, True, True, True]
    assert {r.state for r in reports[0].stats.ranks} == {"finished", "dead"}


def test_fewer_ranks_than_min_ranks_end_the_run_with_below_quorum(tmp_path):
    faults = {1: "kill:before-append:20", 2: "kill:before-append:20", 3: "kill:before-append:20"}
    with pytest.raises(outpace.RankFailed, match=r"BelowQuorum: \[rank 0 - round \d+\] ranks .* died") as caught:
        run("eager:quorum=2", faults, tmp_path)  # rank 0 waits for the last of them, and so learns of its death
    assert "signal SIGKILL" in str(caught.value)
