"""When a round goes ahead, by example."""

from __future__ import annotations

import json

import pytest

from outpace.protocol.ledger import Ledger
from tests.support.protocol.logs import arrive, dead, done, finish, join, seal, sealed_ranks, started, sync

ROUNDS = 4000


def on_time_per_round(ledger: Ledger, rounds: int) -> list[int]:
    """How many are on time when rank r arrives r steps into each round. Whoever is late is dropped."""
    active = []
    for number in range(rounds):
        for rank in range(ledger.rules.world):
            ledger.apply(arrive(rank, number))
            if ledger.reducing is not None and len(active) == number:
                active.append(len(ledger.reducing.contributions))
        ledger.apply(done(ledger))
    return active


def mean_wait(active: list[int], world: int) -> float:
    """In arrival steps: rank r of k active ones waits for the k-th, the others wait for nobody."""
    return sum(k * (k - 1) / 2 for k in active) / world / len(active)


@pytest.mark.parametrize("world", range(1, 10))
def test_majority_seals_with_exactly_half_rounded_up(world: int) -> None:
    ledger = started(world, quorum="majority", late="drop")
    assert set(on_time_per_round(ledger, 3)) == {(world + 1) // 2}


@pytest.mark.parametrize(("quorum", "expected"), [("majority", 3.75), ("full", 15.5), ("solo", 0.0)])
def test_mean_wait_of_32_ranks_is_the_documented_one(quorum: str, expected: float) -> None:
    active = on_time_per_round(started(32, quorum=quorum, late="drop"), 2)
    assert mean_wait(active, 32) == expected


@pytest.mark.parametrize("world", [2, 5, 8])
def test_majority_random_activates_half_and_one_half_on_average(world: int) -> None:
    active = on_time_per_round(started(world, quorum="majority-random", late="drop", seed=1), ROUNDS)
    assert sum(active) / ROUNDS == pytest.approx((world + 1) / 2, rel=0.03)
    assert mean_wait(active, world) == pytest.approx((world**2 - 1) / (6 * world), rel=0.05)
    assert set(active) == set(range(1, world + 1))


def test_majority_random_depends_on_seed_and_round_alone() -> None:
    one = on_time_per_round(started(6, quorum="majority-random", late="drop", seed=3), 50)
    again = on_time_per_round(started(6, quorum="majority-random", late="count", seed=3), 1)
    other = on_time_per_round(started(6, quorum="majority-random", late="drop", seed=4), 50)
    assert again == one[:1]
    assert other != one


def test_more_than_can_come_are_never_asked_for() -> None:
    ledger = started(3, quorum="full", min_ranks=1)
    ledger.apply(arrive(0, 0))
    ledger.apply(finish(1))
    assert ledger.reducing is None
    ledger.apply(sync(2))
    assert sealed_ranks(ledger) == [0]


def test_death_of_the_last_one_missing_seals_the_round() -> None:
    ledger = started(3, quorum="full", min_ranks=1)
    ledger.apply(arrive(0, 0))
    ledger.apply(arrive(1, 0))
    ledger.apply(dead(2))
    assert sealed_ranks(ledger) == [0, 1]


def test_a_rank_that_dies_after_arriving_still_counts() -> None:
    ledger = started(4, quorum="majority")
    ledger.apply(arrive(0, 0))
    ledger.apply(dead(0))
    assert ledger.reducing is None
    ledger.apply(arrive(1, 0))
    assert sealed_ranks(ledger) == [0, 1]


def test_carried_ones_do_not_count_towards_the_quorum() -> None:
    ledger = started(3, quorum=2)
    ledger.apply(arrive(0, 0))
    ledger.apply(arrive(1, 0))
    ledger.apply(done(ledger))
    ledger.apply(arrive(0, 1))
    assert ledger.apply(arrive(2, 0)).reason == "late by 1 rounds: carried into round 1"
    assert ledger.reducing is None
    ledger.apply(arrive(1, 1))
    assert sealed_ranks(ledger) == [0, 1, 2]


def test_what_is_carried_is_flushed_when_nobody_can_contribute_any_more() -> None:
    ledger = started(2, quorum="solo")
    ledger.apply(arrive(0, 0))
    ledger.apply(done(ledger))
    ledger.apply(arrive(1, 0))
    ledger.apply(finish(0))
    ledger.apply(finish(1))
    assert sealed_ranks(ledger) == [1]
    ledger.apply(done(ledger))
    assert ledger.ended


def test_grace_leaves_the_round_open_until_its_seal() -> None:
    ledger = started(3, quorum="majority", grace=0.5)
    ledger.apply(arrive(0, 0, at_ns=100))
    assert ledger.deadline_ns is None
    assert ledger.apply(seal(0)).is_ignored
    ledger.apply(arrive(1, 0, at_ns=200))
    assert ledger.deadline_ns == 500_000_200
    ledger.apply(seal(0))
    assert sealed_ranks(ledger) == [0, 1]


def test_grace_ends_when_everybody_is_here() -> None:
    ledger = started(3, quorum="majority", grace=0.5)
    for rank in range(3):
        ledger.apply(arrive(rank, 0))
    assert sealed_ranks(ledger) == [0, 1, 2]


def test_a_quorum_once_met_stays_met_when_a_rank_comes_back_during_grace() -> None:
    ledger = started(4, quorum="majority", grace=0.5, min_ranks=1)
    ledger.apply(dead(2))
    ledger.apply(dead(3))
    ledger.apply(arrive(0, 0))
    ledger.apply(join(2, 2))
    ledger.apply(join(3, 2))
    ledger.apply(seal(0))
    assert sealed_ranks(ledger) == [0]


def late_twice() -> Ledger:
    """Rank 0 has its first row in round 1 and its second in round 2 when round 1 completes, and its first is free."""
    ledger = started(3, quorum="majority", grace=0.5)
    for event in (arrive(1, 0), arrive(2, 0), seal(0), arrive(0, 0)):
        ledger.apply(event)
    ledger.apply(done(ledger))
    for event in (arrive(1, 1), arrive(2, 1), seal(1), arrive(0, 1, row=1)):
        ledger.apply(event)
    ledger.apply(done(ledger))
    return ledger


def test_a_rank_that_got_a_row_back_is_awaited_again() -> None:
    ledger = late_twice()
    assert ledger.free_row(0) == 0
    assert ledger.awaited() == [0, 1, 2]


def test_a_rank_that_got_a_row_back_is_given_grace_by_the_restored_ledger_too() -> None:
    ledger = late_twice()
    restored = Ledger.from_state(ledger.rules, json.loads(json.dumps(ledger.to_state())))
    for event in (arrive(1, 2), arrive(2, 2)):
        ledger.apply(event)
        restored.apply(event)
    assert ledger.round == restored.round


def test_too_few_left_is_below_quorum() -> None:
    ledger = started(3, quorum="majority")
    ledger.apply(dead(0))
    assert not ledger.below_quorum
    ledger.apply(finish(1))
    assert not ledger.below_quorum
    ledger.apply(dead(2))
    assert ledger.below_quorum
