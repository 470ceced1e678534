"""Published weights: rows are never shared or lost, meetings wait for all, swaps happen whole or not at all."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.protocol.events import Event, Kind
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Publishing, Rules

FREEZES = ("", "first", "path")


def joined(world: int, **choices) -> Ledger:
    rules = Rules(world, quorum="solo", grace=0.0, min_ranks=1, publishes=Publishing(**choices))
    ledger = Ledger(rules)
    for rank in range(world):
        ledger.apply(Event(Kind.JOIN, rank, 1))
    return ledger


def publish(ledger: Ledger, rank: int, iteration: int) -> str:
    generation = ledger.published.shelves[rank].generation
    return ledger.apply(Event(Kind.PUBLISH, rank, 1, iteration, generation))


def swap(ledger: Ledger, rank: int, peer: int) -> str:
    shelves = ledger.published.shelves
    return ledger.apply(Event(Kind.SWAP, rank, 1, shelves[peer].generation, shelves[rank].generation, peer))


def rows_of(ledger: Ledger) -> list[int]:
    found = []
    for shelf in ledger.published.shelves.values():
        found += shelf.spares + ([] if shelf.current is None else [shelf.current.row])
    return sorted(found)


STEPS = st.lists(
    st.tuples(st.sampled_from(["publish", "publish", "swap", "sync", "die"]), st.integers(0, 3)), max_size=40
)


@given(STEPS, st.sampled_from(FREEZES), st.integers(3, 5), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_every_row_is_in_one_place_and_a_whole_publication_is_not_written_again(steps, freeze, rows, sync_every):
    edges = ((0, 1), (1, 2), (2, 3), (0, 3)) if freeze == "path" else ()
    ledger = joined(4, rows=rows, freeze=freeze, sync_every=sync_every, edges=edges)
    iterations = [0] * 4
    for action, rank in steps:
        before = ledger.published.open
        if action == "publish" and not publish(ledger, rank, iterations[rank]).startswith("ignored"):
            iterations[rank] += 1
        elif action == "swap" and not freeze:
            swap(ledger, rank, (rank + 1) % 4)
        elif action == "sync":
            ledger.apply(Event(Kind.SYNC, rank, 1, ledger.sync.generation))
        elif action == "die":
            ledger.apply(Event(Kind.DEAD, rank, 1))
        assert ledger.published.open >= before
        assert rows_of(ledger) == list(range(4 * rows))
        if freeze:
            whole = [p for s in ledger.published.shelves.values() for p in s.kept.values()]
            for publication in filter(ledger.published.is_whole, whole):
                assert publication.row != ledger.published.next_row(publication.rank)
        copy = Ledger.from_state(ledger.rules, json.loads(json.dumps(ledger.to_state())))
        assert json.dumps(copy.to_state()) == json.dumps(ledger.to_state())


def test_the_first_to_come_activates_an_iteration_for_all():
    ledger = joined(3, freeze="first", sync_every=4)
    assert publish(ledger, 1, 0) == "on time"
    assert ledger.published.open == 1
    assert list(ledger.published.frozen[0].publications) == [1]
    assert publish(ledger, 0, 0) == "late by 1 iterations: merged with what is there"


def test_a_meeting_waits_for_everybody_who_takes_part():
    ledger = joined(3, freeze="first", sync_every=1)
    publish(ledger, 0, 0)
    publish(ledger, 1, 0)
    assert ledger.published.open == 0
    publish(ledger, 2, 0)
    assert ledger.published.open == 1
    assert {p.iteration for p in ledger.published.frozen[0].publications.values()} == {0}
    publish(ledger, 0, 1)
    publish(ledger, 1, 1)
    ledger.apply(Event(Kind.FINISH, 2, 1))
    assert ledger.published.open == 2


def test_a_late_publication_does_not_stand_for_a_meeting():
    ledger = joined(2, freeze="first", sync_every=3)
    for iteration in range(3):
        publish(ledger, 0, iteration)
    assert ledger.published.open == 2
    publish(ledger, 1, 0)
    publish(ledger, 1, 1)
    assert ledger.published.open == 2
    publish(ledger, 1, 2)
    assert ledger.published.open == 3


def test_a_swap_takes_effect_only_if_neither_changed_meanwhile():
    ledger = joined(2, rows=3)
    publish(ledger, 0, 0)
    publish(ledger, 1, 0)
    stale = Event(Kind.SWAP, 0, 1, ledger.published.shelves[1].generation, ledger.published.shelves[0].generation, 1)
    publish(ledger, 1, 1)
    before = [(s.current, s.generation) for s in ledger.published.shelves.values()]
    assert ledger.apply(stale).startswith("ignored")
    assert [(s.current, s.generation) for s in ledger.published.shelves.values()] == before
    spares = list(ledger.published.shelves[0].spares)
    assert not swap(ledger, 0, 1).startswith("ignored")
    assert [s.current.row for s in ledger.published.shelves.values()] == spares
    assert rows_of(ledger) == list(range(6))


def test_a_publication_on_top_of_a_swap_it_has_not_seen_is_ignored():
    ledger = joined(2, rows=3)
    publish(ledger, 0, 0)
    publish(ledger, 1, 0)
    generation = ledger.published.shelves[1].generation
    swap(ledger, 0, 1)
    assert ledger.apply(Event(Kind.PUBLISH, 1, 1, 1, generation)).startswith("ignored: its weights were changed")


@pytest.mark.parametrize("leaves", [Kind.DEAD, Kind.FINISH])
def test_nobody_waits_for_who_has_left(leaves):
    ledger = joined(3, rows=3)
    publish(ledger, 0, 0)
    assert not ledger.published.is_settled(2, 0)
    ledger.apply(Event(leaves, 2, 1))
    assert ledger.published.is_settled(2, 0)
    assert ledger.published.has_read_all(2, 0)


def test_a_restarted_rank_takes_part_from_where_the_others_are():
    ledger = joined(2, rows=3)
    for iteration in range(5):
        publish(ledger, 0, iteration)
    ledger.apply(Event(Kind.DEAD, 1, 1))
    ledger.apply(Event(Kind.JOIN, 1, 2))
    assert ledger.published.shelves[1].first == 5
    assert ledger.published.is_settled(1, 4)
    assert not ledger.published.is_settled(1, 5)


def test_paths_end_a_wait_only_when_something_new_is_linked():
    ledger = joined(4, freeze="path", edges=((0, 1), (1, 2), (2, 3)))
    publish(ledger, 0, 0)
    publish(ledger, 2, 0)
    assert ledger.published.open == 0  # 0 and 2 are no neighbours
    publish(ledger, 1, 0)
    assert list(ledger.published.frozen[0].publications) == [0, 1, 2]
    publish(ledger, 0, 1)
    publish(ledger, 1, 1)
    assert ledger.published.open == 1  # 0 and 1 are linked already
    publish(ledger, 3, 0)
    assert ledger.published.open == 1  # 3 and its neighbour 2, which does not wait
    publish(ledger, 2, 1)
    assert list(ledger.published.frozen[1].publications) == [0, 1, 2, 3]
