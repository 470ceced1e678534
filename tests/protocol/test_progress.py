"""The quorum that makes most progress: all where ranks are balanced, and never so few that too much is late."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.protocol.pace import FIRST_LOOK, LOOK_EVERY, MOST_WITHHELD, PATIENCE, QuorumChoice, chosen, play
from tests.support.protocol.logs import arrive, done, seal, sealed_ranks, started

MS = 1_000_000


def took(*durations_ms: float, jitter: float = 0.02, steps: int = 16) -> list[list[int]]:
    """How long ranks took for their last steps, give or take a little."""
    draw = random.Random(0)
    return [[int(ms * MS * draw.uniform(1 - jitter, 1 + jitter)) for _ in range(steps)] for ms in durations_ms]


def needed(choice: QuorumChoice, round_: int, least: int, histories: list[list[int]]) -> int:
    return choice.needed(round_, least, len(histories), lambda: histories)


def one_late(world: int, ms: int, delay_ms: int, steps: int = 16) -> list[list[int]]:
    """One rank after the other is late by so much."""
    return [[(ms + delay_ms * ((step + rank) % world == 0)) * MS for step in range(steps)] for rank in range(world)]


@pytest.mark.parametrize("world", [1, 2, 4, 8, 200])
def test_balanced_ranks_wait_for_each_other(world: int) -> None:
    assert chosen(took(*[100] * world)).quorum == world


@pytest.mark.parametrize("slow", [1, 2, 3])
def test_ranks_that_are_always_slow_are_left_behind(slow: int) -> None:
    found = chosen(took(*[100] * (8 - slow), *[1000] * slow))
    assert found.quorum == 8 - slow
    assert found.progress > 3
    assert "times the progress of waiting for all" in str(found)


def test_where_each_is_late_in_turn_most_are_waited_for() -> None:
    assert chosen(one_late(4, 20, 200)).quorum == 3


@pytest.mark.parametrize("is_free", [True, False])
@settings(max_examples=100, deadline=None)
@given(
    histories=st.lists(st.lists(st.integers(0, 1000 * MS), min_size=1, max_size=16), min_size=1, max_size=9),
    least=st.integers(1, 9),
)
def test_never_are_so_few_waited_for_that_too_much_is_withheld(
    is_free: bool, histories: list[list[int]], least: int
) -> None:
    least = min(least, len(histories))
    found = chosen(histories, least, is_free)
    assert least <= found.quorum <= found.ranks == len(histories)
    in_order = sorted(histories, key=lambda history: sum(history) / len(history))
    assert play(in_order, found.quorum).withheld <= MOST_WITHHELD
    if not is_free and found.quorum > least:
        assert play(in_order, found.quorum - 1).withheld > MOST_WITHHELD


def test_with_everybody_nothing_is_late() -> None:
    assert play(took(10, 20, 900, jitter=0.5), 3)[1:] == (0.0, 0.0)


@pytest.mark.parametrize(("is_free", "least", "begins", "ends"), [(True, 4, 8, 7), (False, 4, 4, 6), (False, 7, 7, 7)])
def test_it_begins_with_everybody_unless_so_many_were_asked_for(
    is_free: bool, least: int, begins: int, ends: int
) -> None:
    uneven, choice = took(*[100] * 7, 900), QuorumChoice(is_free)
    assert needed(choice, 0, least, uneven) == begins
    assert needed(choice, FIRST_LOOK - 1, least, uneven) == begins
    assert needed(choice, FIRST_LOOK, least, uneven) == ends


def test_it_comes_back_when_ranks_are_balanced_again_and_says_when_and_why() -> None:
    choice, slow, even = QuorumChoice(), took(100, 100, 100, 900), took(100, 100, 100, 100)
    quorums = [needed(choice, number, 2, slow if number < 24 else even) for number in range(40)]
    assert (quorums[0], quorums[23], quorums[39]) == (4, 3, 4)
    assert [(change.round, change.quorum) for change in choice.changes] == [(0, 4), (FIRST_LOOK, 3), (24, 4)]
    assert str(choice.changes[-1]) == "4 of 4: nothing is gained by leaving anybody behind"
    assert 24 % LOOK_EVERY == 0


def test_it_looks_often_at_first() -> None:
    choice, looks = QuorumChoice(), []
    for number in range(40):
        before = choice.to_state()["_looked"]
        needed(choice, number, 2, took(100, 100))
        looks += [number] if choice.to_state()["_looked"] != before else []
    assert looks == [0, 2, 4, 8, 16, 24, 32]


def test_who_joins_or_leaves_makes_it_look_again() -> None:
    choice, uneven = QuorumChoice(), took(100, 100, 100, 900)
    for number in range(FIRST_LOOK + 1):
        needed(choice, number, 2, uneven)
    assert needed(choice, FIRST_LOOK + 1, 2, uneven[:3]) == 3
    assert needed(choice, FIRST_LOOK + 2, 2, [*uneven, []]) == 4, "one that is new is waited for"


def test_a_restored_choice_decides_alike() -> None:
    choice, uneven = QuorumChoice(), took(100, 100, 100, 900)
    for number in range(6):
        needed(choice, number, 2, uneven)
    restored = QuorumChoice().with_state(json.loads(json.dumps(choice.to_state())))
    assert restored.changes == choice.changes
    assert [needed(restored, n, 2, took(1, 1, 1, 1)) for n in range(6, 20)] == [
        needed(choice, n, 2, took(1, 1, 1, 1)) for n in range(6, 20)
    ]


def test_a_rank_that_something_happened_to_is_waited_for_no_longer_than_any_took_and_soon_not_at_all() -> None:
    ledger = started(3, quorum="auto")

    def come(ranks: int, at_ns: int) -> None:
        version = ledger.round
        for rank in range(ranks):
            ledger.apply(arrive(rank, version, at_ns=at_ns))

    for number in range(3):
        come(3, at_ns=(number + 1) * 100 * MS)
        ledger.apply(done(ledger, at_ns=(number + 1) * 100 * MS))
    for number in range(3, 5):
        now = (number + 1) * 100 * MS
        come(2, at_ns=now)
        assert ledger.reducing is None, "the third may still come"
        assert ledger.deadline_ns is not None
        assert now < ledger.deadline_ns <= now + PATIENCE * 100 * MS
        ledger.apply(seal(number))
        ledger.apply(done(ledger, at_ns=now))
    come(2, at_ns=600 * MS)
    assert sealed_ranks(ledger) == [0, 1], "it has been silent for rounds: nobody waits"
