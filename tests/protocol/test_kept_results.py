"""Results and snapshots that somebody may still need."""

from __future__ import annotations

from outpace.protocol.events import Claim, Snapshot
from outpace.protocol.ledger import Ledger
from tests.support.protocol.logs import arrive, done, started, sync


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
    assert list(ledger.completed) == [2, 3]


def test_results_are_given_up_before_slots_run_out() -> None:
    ledger = started(3, quorum=1, max_staleness=2)
    write_snapshot(ledger, 0, 0, version=0)
    for version in range(40):
        complete_one(ledger, version % 3, version)
        assert len(ledger.free_slots()) > ledger.rules.world
        assert ledger.completed.keys() >= {version, max(0, version - 1)}


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
