"""What a round's record says, by example: divisor, hyper-parameters, refusals, void rounds, resuming."""

from __future__ import annotations

from hypothesis import given, settings

from outpace.protocol.events import Attempt, Claim, Snapshot
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules
from tests.support.protocol.drawn_logs import CHOICES, all_rules, begin
from tests.support.protocol.logs import arrive, dead, done, finish, join, refuse, sealed_ranks, started, sync
from tests.support.protocol.reference import Reference, leaders
from tests.support.protocol.simulated_ranks import Choice, Run


def leader(ledger: Ledger) -> tuple[int, int] | None:
    """(rank, step) whose hyper-parameters the round being reduced is applied with."""
    assert ledger.reducing is not None
    origin = ledger.reducing.hyper_from
    return None if origin is None else (origin.rank, origin.step)


# -- divisor -----------------------------------------------------------------------------------------------------------


def test_world_divisor_counts_members_that_did_not_contribute() -> None:
    ledger = started(4, quorum="majority")
    ledger.apply(arrive(0, 0))
    ledger.apply(arrive(1, 0))
    assert ledger.reducing is not None
    assert ledger.reducing.factors("world") == ([1.0, 1.0], 1 / 4)
    assert ledger.reducing.factors("contributors") == ([1.0, 1.0], 1 / 2)


def test_world_divisor_counts_the_dead_only_if_they_contributed() -> None:
    ledger = started(4, quorum="majority", min_ranks=1)
    ledger.apply(arrive(0, 0))
    for event in (dead(0), dead(3), finish(2), arrive(1, 0)):
        ledger.apply(event)
    assert ledger.reducing is not None
    assert ledger.reducing.world == 3  # rank 0 contributed, rank 1 lives, rank 2 has finished


def test_samples_divisor_weighs_by_samples() -> None:
    ledger = started(2, quorum="full", normalise="samples")
    ledger.apply(arrive(0, 0)._replace(samples=3.0))
    ledger.apply(arrive(1, 0)._replace(samples=1.0))
    assert ledger.reducing is not None
    assert ledger.reducing.factors("samples") == ([3.0, 1.0], 1 / 4)


def test_weights_are_finite_when_nobody_brought_samples() -> None:
    ledger = started(1, normalise="samples")
    ledger.apply(arrive(0, 0)._replace(samples=0.0))
    assert ledger.reducing is not None
    assert ledger.reducing.factors("samples") == ([0.0], 1.0)


# -- hyper-parameters --------------------------------------------------------------------------------------------------


def test_hyper_parameters_are_those_of_the_most_own_steps_and_the_lowest_rank() -> None:
    ledger = started(3, quorum="full")
    for rank, step in ((0, 4), (1, 7), (2, 7)):
        ledger.apply(arrive(rank, 0, step))
    assert leader(ledger) == (1, 7)


def test_hyper_parameters_never_go_back() -> None:
    ledger = started(2, quorum="solo", late="drop")
    ledger.apply(arrive(0, 0, 9))
    ledger.apply(done(ledger))
    ledger.apply(arrive(1, 1, 3))
    assert leader(ledger) is None
    ledger.apply(done(ledger))
    ledger.apply(arrive(1, 2, 9))
    assert leader(ledger) == (1, 9)


def test_hyper_parameters_never_come_from_a_carried_contribution() -> None:
    ledger = started(2, quorum="solo")
    ledger.apply(arrive(0, 0, 1))
    ledger.apply(done(ledger))
    ledger.apply(arrive(1, 0, 50))
    ledger.apply(arrive(0, 1, 2))
    assert sealed_ranks(ledger) == [0, 1]
    assert leader(ledger) == (0, 2)


def test_hyper_parameters_of_a_refused_leader_are_replaced_by_the_next_one() -> None:
    ledger = started(3, quorum="full")
    for rank, step in ((0, 5), (1, 4), (2, 3)):
        ledger.apply(arrive(rank, 0, step))
    ledger.apply(refuse(0, 5))
    assert leader(ledger) == (1, 4)


def test_a_rank_that_is_always_refused_does_not_freeze_the_hyper_parameters_of_all() -> None:
    ledger = started(2, quorum="full")
    for number in range(3):
        ledger.apply(arrive(0, number, number + 10))
        ledger.apply(arrive(1, number, number + 1))
        ledger.apply(refuse(0, number + 10))
        assert leader(ledger) == (1, number + 1)
        ledger.apply(done(ledger))


@settings(max_examples=150)
@given(all_rules(), CHOICES)
def test_hyper_parameters_follow_their_rule_in_every_run(rules: Rules, choices: list[Choice]) -> None:
    reference = Reference(rules)
    run = Run(rules, lambda event, reason: reference.apply(event))
    begin(run, 0)
    for choice in choices:
        run.play(choice)
        for number, record in run.ledger.completed.items():
            origin = record.hyper_from
            assert (None if origin is None else (origin.rank, origin.step)) == leaders(reference)[number]


# -- refused and void --------------------------------------------------------------------------------------------------


def test_a_refused_contribution_leaves_its_round_and_keeps_its_row_until_the_end() -> None:
    ledger = started(2, quorum="full")
    ledger.apply(arrive(0, 0))
    ledger.apply(arrive(1, 0))
    assert ledger.reducing is not None
    slot = ledger.reducing.slot
    assert ledger.apply(refuse(1, 1)).reason == "rank 1 step 1: not finite, refused in round 0"
    assert sealed_ranks(ledger) == [0]
    assert ledger.reducing.attempt == 1
    assert ledger.reducing.slot != slot
    assert ledger.free_row(1) == 1
    ledger.apply(done(ledger))
    assert ledger.free_row(1) == 0
    assert ledger.members.tallies[1].dropped == 1
    assert ledger.members.tallies[0].on_time == 1


def test_a_result_of_the_attempt_before_a_refusal_is_ignored() -> None:
    ledger = started(2, quorum="full")
    ledger.apply(arrive(0, 0))
    ledger.apply(arrive(1, 0))
    early = done(ledger)
    ledger.apply(refuse(1, 1))
    assert ledger.apply(early).is_ignored
    assert ledger.reducing is not None


def test_a_round_whose_contributions_are_all_refused_is_void_and_over() -> None:
    ledger = started(2, quorum="full")
    ledger.apply(arrive(0, 0))
    ledger.apply(arrive(1, 0))
    ledger.apply(refuse(0, 1))
    ledger.apply(refuse(1, 1))
    assert ledger.reducing is None
    assert ledger.completed[0].void
    assert [t.dropped for t in ledger.members.tallies.values()] == [1, 1]
    assert ledger.apply(arrive(0, 1)).reason == "on time"


def test_an_overflow_makes_the_round_void_for_everybody_alike() -> None:
    ledger = started(2, quorum="full")
    ledger.apply(arrive(0, 0))
    ledger.apply(arrive(1, 0))
    assert ledger.apply(done(ledger, void=True)).reason == "round 0 overflowed: void"
    record = ledger.completed[0]
    assert record.void
    assert record.clip == 1.0
    assert [(t.on_time, t.dropped) for t in ledger.members.tallies.values()] == [(0, 1), (0, 1)]


def attempt(number: int, slot: int) -> Attempt:
    return Attempt(0, number, slot)


def test_of_two_observers_that_open_the_same_attempt_the_first_wins() -> None:
    ledger = started(1)
    ledger.apply(arrive(0, 0))
    one, other = ledger.free_slots()[:2]
    ledger.apply(attempt(1, one))
    assert ledger.apply(attempt(1, other)).is_ignored
    assert ledger.reducing is not None
    assert (ledger.reducing.attempt, ledger.reducing.slot) == (1, one)


def test_an_attempt_never_goes_into_a_slot_that_is_kept_or_being_written() -> None:
    ledger = started(2, quorum="solo")
    ledger.apply(arrive(0, 0))
    ledger.apply(done(ledger))
    ledger.apply(arrive(0, 1))
    assert ledger.reducing is not None
    for slot in (ledger.completed[0].slot, ledger.reducing.slot, ledger.results.slots):
        assert ledger.apply(attempt(1, slot)._replace(round=1)).is_ignored


# -- synchronising, resuming, restarting -------------------------------------------------------------------------------


def test_synchronise_waits_for_all_who_have_data_and_flushes() -> None:
    ledger = started(3, quorum="solo")
    ledger.apply(arrive(0, 0))
    ledger.apply(done(ledger))
    ledger.apply(arrive(1, 0))
    for event in (finish(2), sync(0), sync(1)):
        ledger.apply(event)
    assert sealed_ranks(ledger) == [1]
    assert ledger.sync.generation == 0
    ledger.apply(done(ledger))
    assert (ledger.sync.generation, ledger.sync.version, ledger.sync.ranks) == (1, 2, (0, 1))


def test_a_resume_goes_on_from_the_newest_round_asked_for() -> None:
    ledger = started(2, quorum="full")
    ledger.apply(sync(0, resume_round=40))
    ledger.apply(sync(1, resume_round=37))
    assert (ledger.round, ledger.sync.version, ledger.completed) == (40, 40, {})
    assert ledger.snapshots.latest is None
    assert ledger.apply(arrive(0, 40)).reason == "on time"
    assert ledger.apply(arrive(1, 39)).reason == "late by 1 rounds: carried into round 40"


def test_a_resume_never_counts_rounds_backwards_and_holds_once() -> None:
    ledger = started(1)
    for number in range(3):
        ledger.apply(arrive(0, number))
        ledger.apply(done(ledger))
    ledger.apply(sync(0, 0, resume_round=1))
    assert ledger.round == 3
    ledger.apply(arrive(0, 3))
    ledger.apply(done(ledger))
    ledger.apply(sync(0, 1))
    assert list(ledger.completed) == [3]


def test_what_a_former_life_appends_changes_nothing() -> None:
    ledger = started(2, quorum="full")
    ledger.apply(dead(0))
    assert ledger.apply(arrive(0, 0)).is_ignored
    assert ledger.apply(finish(0)).is_ignored
    assert ledger.apply(sync(0)).is_ignored
    ledger.apply(join(0, 2))
    assert ledger.apply(dead(0, 1)).is_ignored
    assert ledger.apply(arrive(0, 0, incarnation=1)).is_ignored
    assert ledger.apply(join(0, 1)).is_ignored
    assert ledger.apply(arrive(0, 0, incarnation=2)).reason == "on time"


# -- snapshots ---------------------------------------------------------------------------------------------------------


def claim(rank: int, buffer: int) -> Claim:
    return Claim(rank, 1, buffer)


def snapshot(rank: int, buffer: int, version: int) -> Snapshot:
    return Snapshot(rank, 1, buffer, version, position=version * 10)


def test_a_buffer_is_written_by_one_rank_and_never_while_it_holds_the_latest_snapshot() -> None:
    ledger = started(2)
    ledger.apply(claim(0, 0))
    assert ledger.apply(claim(1, 0)).is_ignored
    assert ledger.apply(snapshot(1, 0, 5)).is_ignored
    ledger.apply(snapshot(0, 0, 5))
    assert ledger.snapshots.latest == (0, 5, 50)
    assert ledger.apply(claim(1, 0)).is_ignored


def test_an_older_snapshot_never_replaces_a_newer_one() -> None:
    ledger = started(2)
    for event in (claim(0, 0), claim(1, 1), snapshot(1, 1, 8)):
        ledger.apply(event)
    assert ledger.apply(snapshot(0, 0, 7)).is_ignored
    assert ledger.snapshots.latest == (1, 8, 80)
    assert ledger.snapshots.free(0, rank=1)


def test_a_dead_writer_gives_its_buffer_back() -> None:
    ledger = started(2)
    ledger.apply(claim(0, 0))
    ledger.apply(dead(0))
    assert ledger.snapshots.free(0, rank=1)
    assert ledger.apply(snapshot(0, 0, 5)).is_ignored


def test_a_rank_that_gave_up_a_snapshot_finds_a_buffer_for_the_next() -> None:
    ledger = started(1)
    for event in (claim(0, 0), snapshot(0, 0, 0), claim(0, 1)):
        ledger.apply(event)
    assert not ledger.apply(claim(0, ledger.snapshots.free_buffer(0))).is_ignored
