"""Other parts of torch beside outpace, in real processes whose ranks are not equally fast."""

import os
import signal
from pathlib import Path

import pytest

import outpace
from tests.support import friends
from tests.support.agreement import agree
from tests.support.launches import in_one_launch
from tests.support.processes import exists, until

UNEVEN = ["eager-majority", "eager-solo"]
WORLD, STEPS = 3, 30
NOTHING_DROPPED = [f"{strategy}:max_staleness={WORLD * STEPS}" for strategy in UNEVEN]  # there are no more rounds


@pytest.mark.parametrize("strategy", [*NOTHING_DROPPED, "allreduce"])
def test_an_overflow_on_one_rank_leaves_out_that_step_and_nothing_else(strategy):
    overflows = {0: [5], 1: [0, 11, 12, 20]}
    reports = outpace.spawn(friends.count_scaled, WORLD, (strategy, STEPS, overflows))
    agree(reports)
    for report in reports:
        for rank, row in enumerate(report.counts):
            expected = [0.0 if step in overflows.get(rank, []) else 1.0 for step in range(STEPS)]
            assert row == pytest.approx(expected)
    assert len({report.extra for report in reports}) == WORLD, "the ranks' scales are the same: nothing was shown"
    assert [r.dropped for r in reports[0].stats.ranks] == [0, 0, 0], "no round ever saw what overflowed"


def test_a_step_that_a_scaler_skips_is_as_if_its_rank_had_sat_it_out():
    scaled = outpace.spawn(friends.without_one_step, 2, (True, 20, 1, 6))
    plain = outpace.spawn(friends.without_one_step, 2, (False, 20, 1, 6))
    assert scaled[0].extra != scaled[1].extra, "the ranks' scales are the same: nothing was shown"
    assert agree(scaled) == agree(plain)
    assert scaled[0].final == plain[0].final
    assert [report.stats.steps for report in scaled] == [20, 19]


KINDS = [
    *(("autocast", strategy) for strategy in UNEVEN),
    *(("bfloat16", strategy) for strategy in UNEVEN),
    ("compiled", "eager-majority"),
    ("recomputed", "eager-majority"),
    ("recomputed-reentrant", "eager-solo"),
]


@pytest.fixture(scope="module")
def trained_with():
    """Nobody can be too late, however long it compiles: there are never so many rounds."""
    cases = {(kind, strategy): (kind, f"{strategy}:max_staleness=180", 60) for kind, strategy in KINDS}
    return in_one_launch(friends.train_with, 3, cases)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "strategy"), KINDS)
def test_replicas_agree_and_learn_with(kind, strategy, trained_with):
    reports = trained_with[kind, strategy]
    agree(reports)
    # the others may have gone beyond `max_staleness` while the last rank compiled its first step
    assert sum(r.carried + r.dropped for r in reports[0].stats.ranks) > 0, "nobody was ever late"
    for report in reports:
        first, last = report.extra
        assert last < 0.7 * first


def test_computing_activations_again_changes_no_bit():
    kinds = ["plain", "recomputed", "recomputed-reentrant"]
    for finals in outpace.spawn(friends.same_with_and_without, 2, (kinds, 20)):
        assert len(set(finals)) == 1


@pytest.mark.parametrize("strategy", NOTHING_DROPPED)
def test_gradients_that_each_rank_clips_are_applied_as_they_were_clipped(strategy):
    for counts in outpace.spawn(friends.count_clipped, WORLD, (strategy, STEPS)):
        assert [value for row in counts for value in row] == pytest.approx([1.0] * WORLD * STEPS, rel=1e-4)


@pytest.mark.parametrize("strategy", UNEVEN)
def test_no_round_moves_further_than_max_grad_norm(strategy):
    limit = 0.5
    results = outpace.spawn(friends.clipped_rounds, 3, (strategy, 30, limit))
    assert len({digest for _, digest in results}) == 1
    for moved, _ in results:
        assert max(moved.values()) == pytest.approx(limit, rel=1e-3)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_rank_killed_while_its_loader_workers_live_is_dead_and_they_end(start_method, tmp_path):
    steps = 12
    dead, alive = outpace.spawn(friends.load_with_workers, 2, (start_method, str(tmp_path), steps, 0))
    orphans, ended = (list(map(int, Path(tmp_path, f"{rank}.workers").read_text().split())) for rank in (0, 1))
    assert dead is None
    assert alive == (steps, "dead")
    assert len(orphans) == len(ended) == 2
    assert all(map(exists, orphans)), "they had ended before: nothing was shown"
    for pid in orphans:
        os.kill(pid, signal.SIGCONT)
    until(lambda: not any(map(exists, orphans + ended)))


def test_loader_workers_disturb_nobody(tmp_path):
    assert outpace.spawn(friends.load_with_workers, 2, ("fork", str(tmp_path), 12, -1)) == [(12, ""), (12, "")]
    workers = [int(pid) for rank in (0, 1) for pid in Path(tmp_path, f"{rank}.workers").read_text().split()]
    assert len(workers) == 4
    until(lambda: not any(map(exists, workers)))
