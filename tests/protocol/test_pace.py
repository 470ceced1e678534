"""What arrival times teach: grace for jitter, none for stragglers, and how long to wait at most."""

from __future__ import annotations

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from outpace.protocol.ledger import Ledger
from outpace.protocol.pace import GRACE_SHARE, PATIENCE, Pace
from tests.support.protocol.logs import arrive, done, seal, started

MS = 1_000_000
ROUND = 100 * MS


def observed(lags_ms: list[float], rounds: int = 12) -> Pace:
    """A pace that has seen rounds of 100 ms, with these lags behind each quorum."""
    pace = Pace()
    for number in range(rounds):
        met = number * ROUND
        pace.quorum_met(number, met, 8)
        for rank, lag in enumerate(lags_ms):
            pace.arrived(rank, number, met + int(lag * MS))
    return pace


def computing(durations_ms: list[float], jitter: float = 0.02, rounds: int = 16) -> Pace:
    """A pace that has seen ranks compute for so long, give or take a little."""
    pace, draw = Pace(), random.Random(0)
    for rank, duration in enumerate(durations_ms):
        now = 0
        for _ in range(rounds):
            pace.released([rank], now)
            now += int(duration * MS * draw.uniform(1 - jitter, 1 + jitter))
            pace.arrived(rank, -1, now)
    return pace


def test_grace_covers_ranks_that_only_jitter() -> None:
    assert 5 * MS <= observed([1, 2, 3, 4, 5]).grace_ns() <= 7 * MS


def test_grace_does_not_wait_for_stragglers() -> None:
    assert observed([80, 150, 400]).grace_ns() == 0


def test_grace_covers_jitter_beside_one_straggler() -> None:
    assert 3 * MS <= observed([1, 2, 3, 400]).grace_ns() <= 4 * MS


def test_there_is_no_grace_before_anything_is_known() -> None:
    assert Pace().grace_ns() == 0
    assert observed([]).grace_ns() == 0
    assert observed([1.0], rounds=1).grace_ns() == 0


def test_one_long_pause_does_not_stretch_grace() -> None:
    pace = observed([14, 14, 14])
    pace.quorum_met(12, 11 * ROUND + 60_000 * MS, 8)
    assert pace.grace_ns() <= GRACE_SHARE * ROUND


@given(st.lists(st.floats(0, 300), max_size=6))
def test_grace_never_costs_more_than_its_share_of_a_round(lags_ms: list[float]) -> None:
    assert 0 <= observed(lags_ms).grace_ns() <= GRACE_SHARE * ROUND


def test_grace_covers_ranks_that_jitter_much_when_nobody_is_missing() -> None:
    assert observed([0, 2, 4, 6, 8, 10, 11]).grace_ns() >= 11 * MS


def test_grace_covers_who_jitters_also_where_most_are_stragglers() -> None:
    grace = observed([2, 400, 500, 600]).grace_ns()
    assert 2 * MS <= grace <= 3 * MS


def test_grace_is_never_negative_when_a_stopped_rank_appends_an_old_time() -> None:
    assert observed([-1.0]).grace_ns() >= 0


def test_nobody_is_waited_for_longer_than_twice_the_longest_step_of_late() -> None:
    assert Pace().patience_ns() is None
    assert computing([100, 400], jitter=0).patience_ns() == PATIENCE * 400 * MS


def test_times_that_cross_are_no_negative_durations() -> None:
    pace = Pace()
    pace.released([0], 100 * MS)
    pace.arrived(0, 0, 99 * MS)
    assert pace.durations([0, 1]) == [[0], []]


def test_a_restored_pace_decides_alike() -> None:
    for pace in (observed([1, 2, 3]), computing([100] * 3 + [900])):
        restored = Pace().with_state(json.loads(json.dumps(pace.to_state())))
        assert restored.grace_ns() == pace.grace_ns()
        assert restored.patience_ns() == pace.patience_ns()
        assert restored.durations(range(5)) == pace.durations(range(5))


def end_round(ledger: Ledger, at_ns: int) -> None:
    if ledger.deadline_ns is not None and ledger.deadline_ns < at_ns:
        ledger.apply(seal(ledger.round))
    if ledger.reducing is not None:
        ledger.apply(done(ledger, at_ns=at_ns))


def test_with_auto_grace_ranks_that_jitter_soon_are_all_on_time() -> None:
    ledger = started(4, quorum="majority", grace="auto")
    for step in range(1, 20):
        begin_ns, version = step * ROUND, ledger.round
        for rank in range(4):
            at_ns = begin_ns + rank * 2 * MS
            end_round(ledger, at_ns)
            ledger.apply(arrive(rank, version, step, row=ledger.free_row(rank) or 0, at_ns=at_ns))
        end_round(ledger, begin_ns + ROUND // 2)
    first, last = ledger.completed[min(ledger.completed)], ledger.completed[max(ledger.completed)]
    assert ledger.members.tallies[3].carried >= 1, "nothing was known at first"
    assert [c.late for c in first.contributions] == [c.late for c in last.contributions] == [False] * 4


def test_auto_grace_waits_for_a_rank_of_half_speed_only_in_rounds_that_it_can_be_in() -> None:
    ledger, waits = started(4, quorum="majority", grace="auto"), []
    version_of_slow = ledger.round
    for step in range(1, 25):
        begin_ns, version = step * ROUND, ledger.round
        for rank in range(3):
            row = ledger.free_row(rank) or 0
            ledger.apply(arrive(rank, version, step, row=row, at_ns=begin_ns + rank * 2 * MS))
        waits.append(ledger.reducing is None)
        if step % 2 == 0:
            row, at_ns = ledger.free_row(3) or 0, begin_ns + 4 * MS + MS // 5
            ledger.apply(arrive(3, version_of_slow, step // 2, row=row, at_ns=at_ns))
        end_round(ledger, begin_ns + ROUND // 2)
        if step % 2 == 0:
            version_of_slow = ledger.round
    assert waits[-6:] == [False, True] * 3
