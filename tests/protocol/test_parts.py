"""Rounds that can be added to, that need a quorum of work, or that take in one contribution at a time."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.protocol.events import Arrive, OutcomeKind
from outpace.protocol.ledger import Ledger
from tests.support.protocol.logs import done, started


def piece(
    rank: int, step: int, version: int, pieces: int, row: int, is_part: bool = True, planned: float = 4
) -> Arrive:
    """The rank's so-manieth micro-batch at a version, summed up with those before."""
    return Arrive(rank, 1, step, version, row, float(pieces), planned, pieces, is_part)


def nonblocking(world: int, **choices) -> Ledger:
    return started(world, quorum="solo", cumulative=True, normalise="finished", **choices)


def test_a_later_piece_takes_the_place_of_the_earlier_one():
    ledger = nonblocking(2)
    assert ledger.apply(piece(0, 1, 0, 1, row=0)).reason == "1 in time so far"
    assert ledger.apply(piece(0, 2, 0, 2, row=1)).reason == "2 in time so far"
    assert [(c.rank, c.row, c.pieces) for c in ledger.carried] == [(0, 1, 2)]
    assert ledger.free_row(0) == 0


def test_who_finishes_first_ends_the_round_with_what_all_have_finished():
    ledger = nonblocking(3)
    ledger.apply(piece(0, 1, 0, 1, row=0))
    ledger.apply(piece(0, 2, 0, 2, row=1))
    ledger.apply(piece(1, 1, 0, 1, row=0))
    assert ledger.reducing is None
    ledger.apply(piece(1, 2, 0, 2, row=1, is_part=False))
    assert [(c.rank, c.samples) for c in ledger.reducing.contributions] == [(0, 2.0), (1, 2.0)]
    assert ledger.reducing.factors("finished") == ([1.0, 1.0], 1 / 4)
    assert ledger.reducing.factors("planned") == ([1.0, 1.0], 1 / 12)


def test_a_piece_whose_earlier_ones_are_sealed_is_not_taken_in_twice():
    ledger = nonblocking(2)
    ledger.apply(piece(0, 1, 0, 1, row=0))
    ledger.apply(piece(1, 1, 0, 1, row=0, is_part=False))
    assert ledger.apply(piece(0, 2, 0, 2, row=1)).kind is OutcomeKind.TOO_LATE
    assert ledger.open.is_empty
    assert ledger.free_row(0) == 1


def test_a_rank_with_nothing_in_the_round_is_carried_as_late():
    ledger = nonblocking(2)
    ledger.apply(piece(1, 1, 0, 1, row=0, is_part=False))
    assert ledger.apply(piece(0, 1, 0, 1, row=0)).reason == "late by 1 rounds: carried into round 1"


def test_late_work_and_two_rows_of_a_growing_sum_fit_side_by_side():
    ledger = nonblocking(2)
    ledger.apply(piece(1, 1, 0, 1, row=0, is_part=False))
    ledger.apply(done(ledger))
    ledger.apply(piece(0, 1, 0, 1, row=0))  # late
    for number in range(1, 6):
        row = ledger.free_row(0)
        assert row is not None
        assert ledger.apply(piece(0, 1 + number, 1, number, row)).reason == f"{number} in time so far"


def test_a_share_of_the_planned_work_is_waited_for():
    ledger = nonblocking(2, work=0.75)
    for number in (1, 2, 3):
        ledger.apply(piece(0, number, 0, number, row=number % 2))
    ledger.apply(piece(0, 4, 0, 4, row=0, is_part=False))
    assert ledger.reducing is None  # 4 of 8
    ledger.apply(piece(1, 1, 0, 1, row=0))
    assert ledger.reducing is None
    ledger.apply(piece(1, 2, 0, 2, row=1))
    assert sum(c.samples for c in ledger.reducing.contributions) == 6


@given(st.lists(st.integers(0, 2), min_size=12, max_size=60), st.integers(1, 7))
def test_a_quorum_of_work_is_met_exactly_and_by_fresh_gradients_alone(order, batch):
    ledger = started(3, quorum="work", work=batch, late="drop", cumulative=True, normalise="finished", min_ranks=1)
    versions, pieces, steps, rounds = [0] * 3, [0] * 3, [0] * 3, []
    for rank in order:
        steps[rank] += 1
        row = ledger.free_row(rank)
        outcome = ledger.apply(piece(rank, steps[rank], versions[rank], pieces[rank] + 1, row))
        pieces[rank] += 1
        if ledger.reducing is not None:
            rounds.append(ledger.reducing)
            ledger.apply(done(ledger))
        if outcome.kind is OutcomeKind.DROPPED or versions[rank] < ledger.round:
            versions[rank], pieces[rank] = ledger.round, 0
    for sealed in rounds:
        assert sum(c.samples for c in sealed.contributions) == batch
        assert {sealed.staleness(c) for c in sealed.contributions} == {0}
        assert sealed.factors("finished")[1] == pytest.approx(1 / batch)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=50), st.integers(1, 4), st.booleans())
def test_one_at_a_time_applies_each_gradient_alone_and_within_its_delay(order, delay, slow_reduction):
    late = "count" if delay > 1 else "drop"
    ledger = started(4, quorum="solo", late=late, max_staleness=max(1, delay - 1), one_at_a_time=True, min_ranks=1)
    versions, steps, applied = [0] * 4, [0] * 4, 0
    for turn, rank in enumerate(order):
        row = ledger.free_row(rank)
        if row is not None:
            steps[rank] += 1
            ledger.apply(Arrive(rank, 1, steps[rank], versions[rank], row))
        while ledger.reducing is not None and (turn % 3 == 0 or not slow_reduction):
            sealed = ledger.reducing
            assert len(sealed.contributions) == 1
            assert sealed.staleness(sealed.contributions[0]) < delay
            applied += 1
            ledger.apply(done(ledger))
        versions[rank] = ledger.complete
    tallies = ledger.members.tallies.values()
    assert sum(t.on_time + t.carried for t in tallies) == applied


def test_parts_survive_a_snapshot():
    ledger = nonblocking(2)
    ledger.apply(piece(0, 1, 0, 1, row=0))
    copy = Ledger.from_state(ledger.rules, json.loads(json.dumps(ledger.to_state())))
    assert copy.apply(piece(0, 2, 0, 2, row=1)).reason == "2 in time so far"
