"""Exactly once, and bit-identical, in real processes."""

from collections import Counter

import pytest

import outpace
from tests.support import ranks
from tests.support.agreement import agree, contributions

STRATEGIES = ["eager-solo", "eager-majority", "eager:quorum=2"]


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weights_and_optimizer_state_are_bit_identical_after_every_round(world, strategy, optimizer):
    if strategy.endswith("=2") and world == 1:
        strategy = "eager:quorum=1"
    steps = 200
    reports = outpace.spawn(ranks.train, world, (strategy, steps, optimizer))
    agree(reports)
    given = contributions(reports)
    dropped = sum(r.dropped for r in reports[0].stats.ranks)
    assert max(Counter(given).values()) == 1
    assert len(given) + dropped == world * steps


@pytest.mark.parametrize("late", ["carry", "count", "drop"])
@pytest.mark.parametrize("quorum", ["solo", "majority", "full", 3, 0.75, "adaptive", "majority-random"])
def test_every_contribution_is_applied_exactly_once_or_recorded_as_dropped(quorum, late):
    world, steps = 4, 60
    reports = outpace.spawn(ranks.count, world, (f"eager:quorum={quorum},late={late},max_staleness=4", steps))
    agree(reports)
    counts = [value for row in reports[0].counts for value in row]
    dropped = sum(r.dropped for r in reports[0].stats.ranks)
    assert set(counts) <= {0.0, 1.0}
    assert counts.count(0.0) == dropped
    if quorum == "full":
        assert dropped == 0


def test_a_vector_of_several_chunks_is_reduced_by_several_ranks():
    reports = outpace.spawn(ranks.count, 4, ("eager-majority:max_staleness=160", 40, 0.002, 700_000))
    agree(reports)
    assert {value for row in reports[0].counts for value in row} == {1.0}


def test_a_rank_that_lags_behind_what_is_kept_adopts_a_snapshot_and_agrees():
    reports = outpace.spawn(ranks.one_slow_rank, 3, ("eager:quorum=solo,max_staleness=3", 150))
    agree(reports)
    slow = reports[2]
    assert len(slow.digests) < slow.stats.version, "the slow rank applied every round: nothing was adopted"
    dropped = sum(r.dropped for r in slow.stats.ranks)
    assert dropped > 0
    assert len(contributions(reports)) + dropped == 2 * 150 + slow.extra
