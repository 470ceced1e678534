"""Exactly once, and bit-identical, in real processes."""

from collections import Counter

import pytest

import outpace
from tests.support import ranks
from tests.support.agreement import agree, contributions
from tests.support.launches import in_one_launch

STRATEGIES = ["eager-solo", "eager-majority", "eager:quorum=2"]


OPTIMIZERS = ["sgd", "adamw"]
STEPS = 200
LATE = ["carry", "count", "drop"]
QUORUMS = ["solo", "majority", "full", 3, 0.75, "auto", "majority-random"]


@pytest.fixture(scope="module", params=[3, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (1, 2, 5, 8))])
def trained(request):
    """(how many ranks, what they report of each strategy and optimizer): one world trains with one after the other."""
    world = request.param
    cases = {
        (strategy, optimizer): ("eager:quorum=1" if world == 1 and "=2" in strategy else strategy, STEPS, optimizer)
        for strategy in STRATEGIES
        for optimizer in OPTIMIZERS
    }
    return world, in_one_launch(ranks.train, world, cases)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_and_optimizer_state_are_bit_identical_after_every_round(trained, strategy, optimizer):
    world, reports_of = trained
    reports = reports_of[strategy, optimizer]
    agree(reports)
    given = contributions(reports)
    dropped = sum(r.dropped for r in reports[0].stats.ranks)
    assert max(Counter(given).values()) == 1
    assert len(given) + dropped == world * STEPS


@pytest.fixture(scope="module")
def counted():
    cases = {
        (quorum, late): (f"eager:quorum={quorum},late={late},max_staleness=4", 60)
        for quorum in QUORUMS
        for late in LATE
    }
    return in_one_launch(ranks.count, 4, cases)


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("quorum", QUORUMS)
def test_every_contribution_is_applied_exactly_once_or_recorded_as_dropped(quorum, late, counted):
    reports = counted[quorum, late]
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
