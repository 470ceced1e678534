"""Published weights: rows are never shared or lost, meetings wait for all, swaps happen whole or not at all."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.protocol.events import Dead, Finish, Join, Outcome, Publish, Read, Swap, Sync
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Publishing, Rules

FREEZES = ("", "first", "path")


def joined(world: int, **choices) -> Ledger:
    rules = Rules(world, quorum="solo", grace=0.0, min_ranks=1, publishes=Publishing(**choices))
    ledger = Ledger(rules)
    for rank in range(world):
        ledger.apply(Join(rank, 1))
    return ledger


def publish(ledger: Ledger, rank: int, iteration: int) -> Outcome:
    generation, life = ledger.published.shelves[rank].generation, ledger.members.by_rank[rank].incarnation
    return ledger.apply(Publish(rank, life, iteration, generation))


def read(ledger: Ledger, rank: int, iteration: int) -> Outcome:
    return ledger.apply(Read(rank, ledger.members.by_rank[rank].incarnation, iteration))


def restart(ledger: Ledger, rank: int) -> Outcome:
    return ledger.apply(Join(rank, ledger.members.by_rank[rank].incarnation + 1))


def swap(ledger: Ledger, rank: int, peer: int) -> Outcome:
    shelves = ledger.published.shelves
    return ledger.apply(Swap(rank, 1, peer, shelves[rank].generation, shelves[peer].generation))


def rows_of(ledger: Ledger) -> list[int]:
    found = []
    for shelf in ledger.published.shelves.values():
        found += shelf.spares + ([] if shelf.current is None else [shelf.current.row])
    return sorted(found)


STEPS = st.lists(
    st.tuples(st.sampled_from(["publish", "publish", "publish", "swap", "sync", "die", "restart"]), st.integers(0, 3)),
    max_size=40,
)


@given(STEPS, st.sampled_from(FREEZES), st.integers(3, 5), st.integers(0, 3), st.integers(0, 3), st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_row_is_in_one_place_and_a_whole_publication_is_not_written_again(
    steps, freeze, rows, sync_every, max_age, once
):
    edges = ((0, 1), (1, 2), (2, 3), (0, 3)) if freeze == "path" else ()
    once = once and freeze == "first"
    ledger = joined(4, rows=rows, freeze=freeze, sync_every=sync_every, max_age=max_age, once=once, edges=edges)
    published, iterations = ledger.published, [0] * 4
    frozen_in: dict[tuple[int, int], int] = {}  # of each publication, the first iteration that had it
    for action, rank in steps:
        before, life = published.open, ledger.members.by_rank[rank].incarnation
        if action == "publish":
            iterations[rank] = max(iterations[rank], published.shelves[rank].first)
            if not publish(ledger, rank, iterations[rank]).is_ignored:
                iterations[rank] += 1
        elif action == "swap" and not freeze:
            swap(ledger, rank, (rank + 1) % 4)
        elif action == "sync":
            ledger.apply(Sync(rank, life, ledger.sync.generation))
        elif action == "die":
            ledger.apply(Dead(rank, life))
        elif action == "restart":
            restart(ledger, rank)
        assert published.open >= before
        assert rows_of(ledger) == list(range(4 * rows))
        if freeze:
            whole = [p for s in published.shelves.values() for p in s.kept.values()]
            for publication in filter(published.is_whole, whole):
                assert publication.row != published.next_row(publication.rank)
        check_what_is_there(ledger, max_age)
        for number, frozen in published.frozen.items() if once else ():
            for place in frozen.publications.values():
                assert frozen_in.setdefault((place.rank, place.serial), number) == number, "averaged once"
        copy = Ledger.from_state(ledger.rules, json.loads(json.dumps(ledger.to_state())))
        assert json.dumps(copy.to_state()) == json.dumps(ledger.to_state())
        assert list(copy.published.current(range(4))) == list(published.current(range(4)))


def check_what_is_there(ledger: Ledger, max_age: int) -> None:
    """Only what is current of those who take part, and nothing too old; quick answers are those of looking at each."""
    published = ledger.published
    for place in published.current(range(4)):
        assert place == published.shelves[place.rank].current
        assert published.taking_part(place.rank)
        assert not max_age or published.open - place.iteration <= max_age
    for frozen in published.frozen.values():
        places = list(frozen.publications.values())
        assert not max_age or all(frozen.number - place.iteration <= max_age for place in places)
        if published.are_whole(frozen.publications, frozen.stamp):
            assert all(map(published.is_whole, places))


@given(st.lists(st.tuples(st.sampled_from(["go", "go", "go", "die", "restart"]), st.integers(0, 2)), max_size=60))
@settings(max_examples=200, deadline=None)
def test_what_all_have_to_read_is_not_written_again_before_they_have(steps):
    """Ranks go on as the engines do: publish when the row is free, and read the meeting that they were in."""
    ledger = joined(3, freeze="first", sync_every=3)
    published, met = ledger.published, {}
    iterations, waits = [0] * 3, [False] * 3
    for action, rank in steps:
        member = ledger.members.by_rank[rank]
        if action == "die":
            ledger.apply(Dead(rank, member.incarnation))
        elif action == "restart":
            restart(ledger, rank)
            iterations[rank], waits[rank] = max(iterations[rank], published.shelves[rank].first), False
        elif action == "go" and member.alive and waits[rank]:
            frozen = published.frozen_for(rank, iterations[rank])
            if frozen is not None:
                waits[rank], iterations[rank] = False, iterations[rank] + 1
                if published.is_barrier(frozen.number) and frozen.has(rank, frozen.number):
                    assert met[frozen.number] == frozen.publications, "all read the same"
                    for place in frozen.publications.values():
                        assert published.next_row(place.rank) != place.row or not published.may_write(place.rank)
                    read(ledger, rank, frozen.number)
        elif action == "go" and member.alive and published.may_write(rank):
            publish(ledger, rank, iterations[rank])
            waits[rank] = True
        for number, frozen in published.frozen.items():
            met.setdefault(number, dict(frozen.publications))
        ledger = Ledger.from_state(ledger.rules, json.loads(json.dumps(ledger.to_state())))
        published = ledger.published
    for other in (1, 2):
        ledger.apply(Dead(other, ledger.members.by_rank[other].incarnation))
    read(ledger, 0, published.open)
    assert published.may_write(0), "nobody else is left to read"


@pytest.mark.parametrize("reads", [True, False])
def test_a_rank_restarted_in_front_of_a_meeting_is_waited_for_and_holds_nobody_up_afterwards(reads):
    ledger = joined(2, freeze="first", sync_every=2)
    publish(ledger, 0, 0)
    ledger.apply(Dead(1, 1))
    restart(ledger, 1)
    assert ledger.published.shelves[1].first == 1
    publish(ledger, 0, 1)
    assert ledger.published.open == 1
    publish(ledger, 1, 1)
    assert ledger.published.open == 2
    for iteration in (2, 3):
        publish(ledger, 0, iteration)
    assert not ledger.published.may_write(0)
    read(ledger, 0, 1)
    assert not ledger.published.may_write(0)
    if reads:
        read(ledger, 1, 1)
    else:
        restart(ledger, 1)  # so soon that nobody noticed its death
    assert ledger.published.may_write(0)


def test_a_rank_that_dies_after_it_came_to_a_meeting_is_not_waited_for_when_it_is_back():
    ledger = joined(3, freeze="first", sync_every=1)
    publish(ledger, 0, 0)
    ledger.apply(Dead(0, 1))
    restart(ledger, 0)
    assert ledger.published.shelves[0].first == 1, "it published iteration 0 in its life before"
    publish(ledger, 1, 0)
    publish(ledger, 2, 0)
    assert ledger.published.open == 1
    assert list(ledger.published.frozen[0].publications) == [1, 2]
    for rank in (1, 2):
        read(ledger, rank, 0)
    assert ledger.published.may_write(1)


def test_what_is_older_than_the_bound_is_averaged_with_by_nobody():
    ledger = joined(3, freeze="first", max_age=2)
    publish(ledger, 0, 0)
    publish(ledger, 1, 0)
    for iteration in (1, 2, 3):
        publish(ledger, 0, iteration)
        there = [place.rank for place in ledger.published.current(range(3))]
        assert there == ([0, 1] if iteration < 2 else [0]), iteration
        assert list(ledger.published.frozen[iteration].publications) == ([0, 1] if iteration < 3 else [0])
    assert publish(ledger, 2, 0).reason == "late by 4 iterations: dropped, the bound is 2"
    assert [place.rank for place in ledger.published.current(range(3))] == [0]
    assert ledger.members.tallies[2].dropped == 1
    assert publish(ledger, 1, 2).reason == "late by 2 iterations: merged with what is there"
    assert [place.rank for place in ledger.published.current(range(3))] == [0, 1]


def test_a_publication_is_frozen_once_in_the_iteration_that_was_open_when_it_came():
    ledger = joined(3, freeze="first", max_age=2, once=True)
    for rank, iteration in ((0, 0), (1, 0), (0, 1), (0, 2), (0, 3), (2, 0), (1, 2), (0, 4)):
        publish(ledger, rank, iteration)
        ledger = Ledger.from_state(ledger.rules, json.loads(json.dumps(ledger.to_state())))
        if (rank, iteration) == (0, 1):
            assert list(ledger.published.frozen[1].publications) == [0, 1], "rank 1 came late, and is in the next one"
        if (rank, iteration) == (0, 3):
            assert list(ledger.published.frozen[3].publications) == [0], "rank 1 has published nothing new"
            assert [place.rank for place in ledger.published.current(range(3))] == [0], "and what it has is too old"
    assert list(ledger.published.frozen[4].publications) == [0, 1], "rank 2 is later than the bound"


def test_what_was_frozen_is_whole_until_one_of_its_ranks_has_published_twice():
    ledger = joined(4, freeze="first")
    for rank, iteration in ((1, 0), (2, 0), (0, 0), (1, 1)):
        publish(ledger, rank, iteration)
    frozen = ledger.published.frozen[1]
    assert sorted(frozen.publications) == [0, 1, 2]
    publish(ledger, 0, 1)
    publish(ledger, 2, 1)
    assert ledger.published.are_whole([0, 1, 2], frozen.stamp)
    publish(ledger, 2, 2)
    assert ledger.published.are_whole([0, 1], frozen.stamp)
    assert not ledger.published.are_whole([1, 2], frozen.stamp)
    assert [ledger.published.is_whole(frozen.publications[rank]) for rank in (0, 1, 2)] == [True, True, False]


def test_the_first_to_come_activates_an_iteration_for_all():
    ledger = joined(3, freeze="first", sync_every=4)
    assert publish(ledger, 1, 0).reason == "on time"
    assert ledger.published.open == 1
    assert list(ledger.published.frozen[0].publications) == [1]
    assert publish(ledger, 0, 0).reason == "late by 1 iterations: merged with what is there"


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
    ledger.apply(Finish(2, 1))
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
    shelves = ledger.published.shelves
    stale = Swap(0, 1, 1, shelves[0].generation, shelves[1].generation)
    publish(ledger, 1, 1)
    before = [(s.current, s.generation) for s in ledger.published.shelves.values()]
    assert ledger.apply(stale).is_ignored
    assert [(s.current, s.generation) for s in ledger.published.shelves.values()] == before
    spares = list(ledger.published.shelves[0].spares)
    assert not swap(ledger, 0, 1).is_ignored
    assert [s.current.row for s in ledger.published.shelves.values()] == spares
    assert rows_of(ledger) == list(range(6))


def test_a_publication_on_top_of_a_swap_it_has_not_seen_is_ignored():
    ledger = joined(2, rows=3)
    publish(ledger, 0, 0)
    publish(ledger, 1, 0)
    generation = ledger.published.shelves[1].generation
    swap(ledger, 0, 1)
    assert ledger.apply(Publish(1, 1, 1, generation)).reason.startswith("ignored: its weights were changed")


@pytest.mark.parametrize("leaves", [Dead, Finish])
def test_nobody_waits_for_who_has_left(leaves):
    ledger = joined(3, rows=3)
    publish(ledger, 0, 0)
    assert not ledger.published.is_settled(2, 0)
    ledger.apply(leaves(2, 1))
    assert ledger.published.is_settled(2, 0)
    assert ledger.published.has_read_all(2, 0)


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_restarted_rank_takes_part_from_where_the_others_are(is_noticed):
    ledger = joined(2, rows=3)
    publish(ledger, 1, 0)
    for iteration in range(5):
        publish(ledger, 0, iteration)
    if is_noticed:
        ledger.apply(Dead(1, 1))
    ledger.apply(Join(1, 2))
    assert not list(ledger.published.current([1]))
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


def test_who_took_part_in_a_publication_does_not_depend_on_when_one_asks():
    ledger = joined(3, rows=3)
    ledger.apply(Finish(2, 1, True))
    publish(ledger, 0, 0)
    assert [ledger.published.took_part(rank, 0) for rank in range(3)] == [True, True, False]
    ledger.apply(Sync(1, 1, 0))
    assert ledger.published.took_part(1, 0), "it left only after the push"
    assert not ledger.published.taking_part(1)
    publish(ledger, 0, 1)
    assert not ledger.published.took_part(1, 0)
