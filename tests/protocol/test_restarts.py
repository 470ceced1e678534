"""Where dead ranks are started again: the end waits for them, is one place in the log, and nobody joins after it."""

from __future__ import annotations

from outpace.protocol.events import Event
from outpace.protocol.ledger import Ledger
from tests.support.protocol.logs import arrive, dead, done, finish, join, started


def leaves_for_good(rank: int, incarnation: int = 1) -> Event:
    return finish(rank, incarnation)._replace(ends_process=True)


def after(ledger: Ledger, *events: Event) -> Ledger:
    for event in events:
        ledger.apply(event)
    return ledger


def test_the_end_waits_for_a_rank_that_died_and_is_started_again() -> None:
    ledger = after(started(3, restarts=True), dead(1), finish(0), finish(2))
    assert not ledger.ended
    assert ledger.awaited() == [1]
    assert not after(ledger, join(1, 2)).ended
    assert after(ledger, finish(1, 2)).ended


def test_without_restarts_nobody_waits_for_the_dead() -> None:
    assert after(started(3), dead(1), finish(0), finish(2)).ended


def test_the_end_waits_for_a_rank_that_was_killed_in_finish() -> None:
    ledger = after(started(2, restarts=True), finish(0), dead(0), finish(1))
    assert not ledger.ended
    assert after(ledger, join(0, 2), finish(0, 2)).ended


def test_the_end_does_not_wait_for_a_rank_whose_process_simply_ended() -> None:
    assert after(started(2, restarts=True), leaves_for_good(0), dead(0), finish(1)).ended


def test_a_rank_that_has_finished_may_still_leave_for_good() -> None:
    ledger = after(started(2, restarts=True), finish(0), leaves_for_good(0), finish(0), dead(0))
    assert after(ledger, finish(1)).ended


def test_the_end_stays_the_end_whoever_ends_or_comes_afterwards() -> None:
    ledger = after(started(2, restarts=True), finish(0), finish(1))
    assert ledger.ended
    assert ledger.apply(join(1, 2)).reason == "ignored: all ranks have finished"
    assert after(ledger, dead(0), dead(1)).ended
    assert Ledger.from_state(ledger.rules, ledger.to_state()).ended


def test_the_end_comes_after_what_is_pending() -> None:
    ledger = after(started(2, restarts=True, quorum="full"), arrive(0, 0), finish(0), finish(1))
    assert not ledger.ended
    assert after(ledger, done(ledger)).ended


def test_one_rank_is_enough_unless_the_script_says_otherwise() -> None:
    ledger = after(started(3, restarts=True, quorum="full"), dead(0), dead(1))
    assert not ledger.below_quorum
    assert after(started(3, restarts=True, min_ranks=2), dead(0), dead(1)).below_quorum
