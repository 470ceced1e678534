"""Results and snapshots that somebody may still need."""

from __future__ import annotations

from hypothesis import given, settings

from outpace.protocol.events import Claim, Snapshot
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules
from tests.support.protocol.drawn_logs import CHOICES, all_rules, begin
from tests.support.protocol.logs import arrive, dead, done, join, started, sync
from tests.support.protocol.simulated_ranks import Choice, Run


def claim(rank: int, buffer: int) -> Claim:
    return Claim(rank, 1, buffer)


def snapshot(rank: int, buffer: int, version: int) -> Snapshot:
    return Snapshot(rank, 1, buffer, version, position=0)


def write_snapshot(ledger: Ledger, rank: int, buffer: int, version: int) -> None:
    ledger.apply(claim(rank, buffer))
    assert not ledger.apply(snapshot(rank, buffer, version)).is_ignored


def complete_one(ledger: Ledger, rank: int, version: int) -> None:
    ledger.apply(arrive(rank, version))
    ledger.apply(done(ledger))


def test_a_result_that_nobody_may_have_applied_is_kept_until_a_snapshot_covers_it() -> None:
    ledger = started(4, quorum=1, late="count", max_staleness=2)
    write_snapshot(ledger, 0, 0, version=0)
    for rank in range(3):
        complete_one(ledger, rank, version=0)
    assert list(ledger.completed) == [0, 1, 2]
    write_snapshot(ledger, 0, 1, version=3)
    complete_one(ledger, 0, version=3)
    assert list(ledger.completed) == [2, 3], "rank 3 lags, and what it needs first is given up"


def test_results_are_given_up_before_slots_run_out() -> None:
    ledger = started(3, quorum=1, max_staleness=2)
    write_snapshot(ledger, 0, 0, version=0)
    for version in range(40):
        complete_one(ledger, version % 3, version)
        assert len(ledger.free_slots()) > ledger.rules.world
        assert ledger.completed.keys() >= {version, max(0, version - 1)}


def test_with_nobody_late_every_result_goes_into_the_same_slot() -> None:
    ledger = started(3, quorum="full")
    slots = set()
    for version in range(10):
        for rank in range(3):
            ledger.apply(arrive(rank, version))
        assert ledger.reducing is not None
        slots.add(ledger.reducing.slot)
        ledger.apply(done(ledger))
    assert slots == {0}


def test_a_result_is_kept_for_the_last_rank_that_has_not_applied_it() -> None:
    ledger = started(3, quorum=1)
    for version in range(4):
        complete_one(ledger, 0, version)
    ledger.apply(arrive(1, 3))
    assert list(ledger.completed) == [0, 1, 2, 3]
    ledger.apply(arrive(2, 2))
    assert list(ledger.completed) == [2, 3]
    ledger.apply(dead(2))
    assert list(ledger.completed) == [3]


def test_what_a_dead_rank_needs_is_kept_only_if_it_is_started_again() -> None:
    for restarts in (False, True):
        ledger = started(2, quorum=1, restarts=restarts)
        complete_one(ledger, 0, 0)
        ledger.apply(dead(1))
        complete_one(ledger, 0, 1)
        assert list(ledger.completed) == ([0, 1] if restarts else [1])


def test_whoever_joins_finds_a_snapshot_or_is_known_to_need_one() -> None:
    ledger = started(2, quorum=1)
    write_snapshot(ledger, 0, 0, version=0)
    for version in range(3):
        complete_one(ledger, 0, version)
        ledger.apply(arrive(1, version + 1, row=version % 2))
    assert not ledger.lacks_snapshot(0), "nobody needs one"
    ledger.apply(dead(1))
    ledger.apply(join(1, 2))
    assert ledger.lacks_snapshot(0), "results from version 0 on are gone"
    write_snapshot(ledger, 0, 1, version=3)
    assert not ledger.lacks_snapshot(0)


def test_a_snapshot_is_spent_when_all_have_gone_on_from_it_and_nobody_begins() -> None:
    ledger = started(2, quorum=1)
    write_snapshot(ledger, 0, 0, version=0)
    complete_one(ledger, 0, 0)
    assert not ledger.is_spent(), "rank 1 may not have begun yet"
    assert ledger.apply(claim(0, 0)).is_ignored
    complete_one(ledger, 0, 1)
    ledger.apply(arrive(1, 1))
    assert ledger.is_spent()
    ledger.apply(dead(1))
    ledger.apply(join(1, 2))
    assert not ledger.is_spent(), "who begins may read it just now"
    assert ledger.apply(claim(0, 0)).is_ignored
    ledger.apply(arrive(1, 1, incarnation=2, row=1))
    assert not ledger.apply(claim(0, 0)).is_ignored
    assert not ledger.snapshots.free(0, rank=1), "somebody empties it"
    ledger.apply(claim(0, ledger.snapshots.buffers))
    assert not ledger.snapshots.claims
    assert not ledger.lacks_snapshot(0), "nobody needs another one"
    ledger.apply(join(1, 3))
    assert ledger.lacks_snapshot(0)


@settings(max_examples=150)
@given(all_rules(), CHOICES)
def test_whoever_lives_can_go_on_and_nothing_is_kept_for_nobody(rules: Rules, choices: list[Choice]) -> None:
    run = Run(rules)
    begin(run, 0)
    for choice in choices:
        run.play(choice)
        ledger, results = run.ledger, run.ledger.results
        living = [rank for rank in run.ranks if ledger.members.current(*rank.life)]
        for rank in living:
            is_behind = rank.version < ledger.complete
            assert not is_behind or rank.version >= results.oldest or results.cannot_go_on(rank.rank)
        needed_from = min((results.applied[rank.rank] for rank in living), default=0)
        assert not living or all(number >= needed_from for number in ledger.completed)


def test_of_two_snapshots_of_one_version_the_first_stays() -> None:
    ledger = started(3)
    ledger.apply(claim(0, 0))
    ledger.apply(claim(1, 1))
    ledger.apply(snapshot(1, 1, version=0))
    assert ledger.apply(snapshot(0, 0, version=0)).is_ignored
    assert ledger.snapshots.latest is not None
    assert ledger.snapshots.latest.buffer == 1


def test_a_snapshot_begun_before_a_resume_is_not_taken_for_one_after_it() -> None:
    ledger = started(2)
    ledger.apply(claim(1, 0))
    for rank in range(2):
        ledger.apply(sync(rank, resume_round=7))
    assert ledger.apply(snapshot(1, 0, version=3)).is_ignored
    assert ledger.snapshots.latest is None
    assert not ledger.snapshots.free(0, rank=0), "its writer may still be writing"
    write_snapshot(ledger, 1, 0, version=7)


def write_without_base(ledger: Ledger, rank: int, buffer: int, version: int) -> bool:
    ledger.apply(claim(rank, buffer))
    return not ledger.apply(snapshot(rank, buffer, version)._replace(has_base=False)).is_ignored


def test_the_latest_base_is_not_overwritten_while_snapshots_go_without() -> None:
    ledger = started(2, quorum=1)
    assert not write_without_base(ledger, 0, 0, version=0), "nobody could begin from it"
    write_snapshot(ledger, 0, 0, version=0)
    for version in range(1, 6):
        buffer = ledger.snapshots.free_buffer(version % 2)
        assert buffer != 0
        assert write_without_base(ledger, version % 2, buffer, version)
        assert ledger.apply(claim(1, 0)).is_ignored
    assert ledger.snapshots.base == (0, 0, 0)


def test_who_begins_gets_a_base_that_is_as_new_as_the_weights() -> None:
    ledger = started(2, quorum=1)
    write_snapshot(ledger, 0, 0, version=0)
    for rank in range(2):
        ledger.apply(arrive(rank, 0))
    ledger.apply(done(ledger))
    assert write_without_base(ledger, 0, 1, version=1)
    assert not ledger.lacks_base(0), "nobody begins"
    ledger.apply(dead(1))
    ledger.apply(join(1, 2))
    assert ledger.lacks_base(0)
    assert not write_without_base(ledger, 0, 2, version=1)
    write_snapshot(ledger, 0, 2, version=1)
    assert not ledger.lacks_base(0)
    assert ledger.snapshots.free(0, rank=0)


def test_a_spent_snapshot_is_given_back_without_its_base() -> None:
    ledger = started(2)
    write_snapshot(ledger, 0, 0, version=0)
    assert write_without_base(ledger, 0, 1, version=1)
    for version in range(4):
        for rank in range(2):
            ledger.apply(arrive(rank, version))
        ledger.apply(done(ledger))
    assert ledger.is_spent()
    for buffer in (0, 1):
        assert not ledger.apply(claim(0, buffer)).is_ignored
        assert ledger.apply(claim(1, buffer)).is_ignored, "somebody empties it"
    ledger.apply(claim(0, ledger.snapshots.buffers))
    assert not ledger.is_spent()
    assert ledger.apply(claim(1, 0)).is_ignored, "the base is there still"
    assert not ledger.apply(claim(1, 1)).is_ignored


def test_there_is_room_for_a_snapshot_while_all_other_ranks_are_stopped_writing_theirs() -> None:
    ledger = started(4)
    write_snapshot(ledger, 0, ledger.snapshots.free_buffer(0), version=0)
    assert write_without_base(ledger, 0, ledger.snapshots.free_buffer(0), version=1)
    for rank in range(1, 4):
        assert not ledger.apply(claim(rank, ledger.snapshots.free_buffer(rank))).is_ignored
    for version in range(2, 5):
        assert write_without_base(ledger, 0, ledger.snapshots.free_buffer(0), version)


def test_weights_that_all_resume_from_have_a_base_of_their_own() -> None:
    ledger = started(2)
    write_snapshot(ledger, 0, 0, version=0)
    for rank in range(2):
        ledger.apply(sync(rank, resume_round=7))
    assert not write_without_base(ledger, 0, 1, version=7)
    write_snapshot(ledger, 0, 1, version=7)
