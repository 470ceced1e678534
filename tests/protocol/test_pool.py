"""The pool of data: every item is in one place, nobody's work is lost with a rank, and none is drawn twice."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.protocol.events import Arrive, Dead, Done, Draw, Finish, Gone, Join, OutcomeKind, Skip, Sync
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules
from tests.support.protocol.logs import dead, finish, join, started

WORLD, TOTAL = 3, 17
DIGEST = 5


class Ranks:
    """Draw, contribute, give back, die and come back, as real ones do, and remember what was contributed."""

    def __init__(self, **choices: object) -> None:
        self.ledger = started(WORLD, quorum="solo", min_ranks=1, max_staleness=1000, **choices)
        self.lives, self.steps, self.covered = [1] * WORLD, [0] * WORLD, [0] * WORLD
        self.contributed: list[tuple[int, int]] = []
        self.speeds = [0.0] * WORLD  #: as they measured them

    def draw(self, rank: int, epoch: int = 0, count: int = 1, kept: int = -1, total: int = TOTAL) -> OutcomeKind:
        event = Draw(rank, self.lives[rank], 0, epoch, total, DIGEST, count, kept, self.speeds[rank])
        return self.ledger.apply(event).kind

    def held(self, rank: int) -> list[tuple[int, int]]:
        hand = self.ledger.pool.hands.get(rank)
        return [] if hand is None else [(s.epoch, item) for s in hand.shares for item in range(s.start, s.stop)]

    def contribute(self, rank: int, items: int = 1) -> None:
        given = self.held(rank)[:items]
        self.steps[rank] += 1
        self.covered[rank] += len(given)
        row = self.ledger.free_row(rank)
        assert row is not None
        life = (rank, self.lives[rank], self.steps[rank], self.ledger.round, row)
        assert not self.ledger.apply(Arrive(*life, covered=self.covered[rank])).is_ignored
        self.contributed += given
        sealed = self.ledger.reducing
        assert sealed is not None
        self.ledger.apply(Done(0, sealed.number, sealed.attempt, sealed.slot))

    def begin_anew(self, rank: int, epoch: int) -> None:
        self.draw(rank, epoch, 0, kept=self.covered[rank])

    def die(self, rank: int) -> None:
        self.ledger.apply(dead(rank, self.lives[rank]))

    def restart(self, rank: int) -> None:
        self.lives[rank] += 1
        self.steps[rank] = self.covered[rank] = 0
        self.ledger.apply(join(rank, self.lives[rank]))

    def is_alive(self, rank: int) -> bool:
        return self.ledger.members.by_rank[rank].alive

    def everywhere(self) -> list[tuple[int, int]]:
        """All items, wherever they are."""
        pool = self.ledger.pool
        fresh = [(n, item) for (_, n), e in pool.epochs.items() for a, b in e.fresh for item in range(a, b)]
        back = [(s.epoch, item) for s in pool.returned for item in range(s.start, s.stop)]
        return sorted(fresh + back + [item for rank in range(WORLD) for item in self.held(rank)] + self.contributed)


CHOICES = st.lists(
    st.tuples(
        st.sampled_from(["draw"] * 6 + ["contribute"] * 6 + ["anew", "die", "restart", "reload", "repeat"]),
        st.integers(0, WORLD - 1),
        st.integers(1, 5),
    ),
    max_size=80,
)


SPEEDS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 8.0]), min_size=WORLD, max_size=WORLD)


@given(CHOICES, SPEEDS)
@settings(max_examples=300, deadline=None)
def test_every_item_is_in_one_place_and_all_are_contributed_once_in_the_end(choices, speeds):
    ranks, epochs = Ranks(), [0] * WORLD
    ranks.speeds = speeds
    ranks.begin_anew(0, 0)
    last = None
    for action, rank, number in choices:
        if action == "restart":
            ranks.restart(rank)
            epochs[rank] = 0
        elif action == "reload":
            state = json.loads(json.dumps(ranks.ledger.to_state()))
            again = Ledger.from_state(ranks.ledger.rules, state)
            assert again.pool.to_state() == ranks.ledger.pool.to_state()
            ranks.ledger = again
        elif action == "repeat" and last is not None:
            ranks.ledger.apply(last)  # a Dead that somebody says again
        elif not ranks.is_alive(rank):
            continue
        elif action == "draw":
            ranks.draw(rank, epochs[rank], number)
        elif action == "contribute":
            ranks.contribute(rank, number)
        elif action == "anew":
            epochs[rank] += number % 2
            ranks.begin_anew(rank, epochs[rank])
        elif action == "die":
            last = Dead(rank, ranks.lives[rank])
            ranks.die(rank)
        assert ranks.everywhere() == sorted({*ranks.everywhere()}), "an item is in two places"
    opened = 1 + ranks.ledger.pool.latest[0]
    for rank in range(WORLD):
        if not ranks.is_alive(rank):
            ranks.restart(rank)
        for epoch in range(opened):
            ranks.begin_anew(rank, epoch)
            ranks.draw(rank, epoch, 10 * TOTAL)
            ranks.contribute(rank, 10 * TOTAL)
    assert sorted(ranks.contributed) == [(epoch, item) for epoch in range(opened) for item in range(TOTAL)]


def test_what_a_dead_rank_held_is_drawn_next_and_what_it_contributed_is_not():
    ranks = Ranks()
    ranks.draw(0, count=4)
    ranks.contribute(0, 2)
    ranks.die(0)
    ranks.draw(1, count=3)
    assert ranks.held(1) == [(0, 2), (0, 3), (0, 4)]


def test_what_is_left_of_an_epoch_goes_into_the_next_one():
    ranks = Ranks()
    ranks.draw(0, count=2)
    ranks.draw(1, count=TOTAL)
    assert ranks.ledger.pool.hands[1].is_dry
    ranks.die(0)
    ranks.contribute(1, TOTAL)
    ranks.begin_anew(1, epoch=1)
    ranks.draw(1, epoch=1, count=3)
    assert ranks.held(1) == [(0, 0), (0, 1), (1, 0)]


@given(SPEEDS, st.integers(1, 3), st.integers(0, 3), st.randoms(use_true_random=False))
def test_whoever_draws_an_epoch_to_its_end_leaves_nothing_however_fast_they_are(speeds, count, prefetched, random):
    """Some leave the last items to others, but never all of them: each loop ends when its rank is told so."""
    ranks, looping = Ranks(), list(range(WORLD))
    ranks.speeds = speeds
    while looping:
        rank = random.choice(looping)
        ranks.draw(rank, count=count)
        if ranks.ledger.pool.hands[rank].is_dry:
            looping.remove(rank)
        in_hand = len(ranks.held(rank))
        if in_hand > prefetched * count or rank not in looping:
            ranks.contribute(rank, in_hand)
    assert sorted(ranks.contributed) == [(0, item) for item in range(TOTAL)]


def test_a_slow_rank_leaves_the_last_items_to_those_who_are_done_with_them_sooner():
    ranks = Ranks()
    ranks.draw(2, count=TOTAL - 2 - 3)
    ranks.contribute(2, TOTAL)
    ranks.speeds = [2.0, 2.0, 1.0]
    for rank in (0, 1):
        ranks.draw(rank)
    ranks.draw(2)  # of three: when it is done, each of the others is with what it has begun, and with one more
    assert len(ranks.held(2)) == 1
    ranks.contribute(2)
    ranks.draw(2)  # of two
    assert ranks.held(2) == []
    assert ranks.ledger.pool.hands[2].is_dry
    for rank in (0, 1):
        ranks.draw(rank)
        assert len(ranks.held(rank)) == 2


def test_ranks_of_one_speed_leave_nothing_to_each_other():
    ranks = Ranks()
    ranks.speeds = [1.0] * WORLD
    for turn in range(TOTAL):
        ranks.draw(turn % WORLD)
        assert len(ranks.held(turn % WORLD)) == 1
        ranks.contribute(turn % WORLD)


def test_what_was_left_to_a_rank_that_dies_is_drawn_by_the_others_in_the_next_epoch():
    ranks = Ranks()
    ranks.speeds = [8.0, 1.0, 0.0]
    ranks.draw(0, count=TOTAL - 3)
    ranks.contribute(0, TOTAL)
    ranks.draw(0)
    ranks.draw(1)
    assert ranks.ledger.pool.hands[1].is_dry
    ranks.die(0)
    ranks.begin_anew(1, epoch=1)
    ranks.draw(1, epoch=1, count=4)
    assert ranks.held(1) == [(0, TOTAL - 3), (0, TOTAL - 2), (0, TOTAL - 1), (1, 0)]


def test_a_rank_that_finishes_keeps_what_it_stands_for_and_no_more():
    ranks = Ranks()
    ranks.draw(0, count=5)
    ranks.draw(0, count=0, kept=3)  # two are given back before it finishes
    ranks.ledger.apply(finish(0))
    ranks.draw(1, count=3)
    assert ranks.held(1) == [(0, 3), (0, 4), (0, 5)]


def test_other_data_are_drawn_by_nobody():
    ranks = Ranks()
    ranks.draw(0)
    assert ranks.draw(1, total=TOTAL + 1) is OutcomeKind.IGNORED
    assert ranks.ledger.pool.hands[1].is_dry
    theirs = ranks.ledger.pool.differs(0, 0, TOTAL + 1, DIGEST)
    assert theirs is not None
    assert theirs.total == TOTAL


def test_what_a_checkpoint_has_trained_is_skipped_whoever_says_so():
    ranks = Ranks()
    for _ in range(2):
        ranks.ledger.apply(Skip(0, 3, TOTAL, DIGEST, 0, 5))
        ranks.ledger.apply(Skip(0, 3, TOTAL, DIGEST, 7, 9))
        ranks.draw(0, epoch=3, count=1)
    assert ranks.held(0) == [(3, 5), (3, 6)]
    ranks.draw(1, epoch=3, count=TOTAL)
    assert ranks.held(1) == [(3, item) for item in range(9, TOTAL)]


def test_a_synchronisation_notes_what_a_checkpoint_has_left():
    ranks = Ranks()
    ranks.draw(0, count=4)
    ranks.contribute(0, 3)
    for rank in range(WORLD):
        ranks.ledger.apply(Sync(rank, 1, 0, covered=ranks.covered[rank]))
    assert ranks.ledger.sync.generation == 1
    ranks.contribute(0, 1)  # somebody goes on before somebody else has looked
    assert ranks.ledger.pool.left_at_sync == {(0, 0): [(3, TOTAL)]}
    assert ranks.ledger.pool.left(0, 0) == [(4, TOTAL)]


@pytest.mark.parametrize("quorum", ["full", "solo"])  # in the open round, or alone in one that is being reduced
def test_what_was_contributed_and_is_lost_with_its_host_is_drawn_again(quorum):
    rules = Rules(2, quorum=quorum, grace=0, min_ranks=1, hosts=(0, 1))
    ledger = Ledger(rules)
    for rank in range(2):
        ledger.apply(Join(rank, 1))
    ledger.hosts.enter(0, 1, 0)
    ledger.hosts.enter(1, 1, 0)
    ledger.apply(Draw(1, 1, 0, 0, TOTAL, DIGEST, 3))
    ledger.apply(Arrive(1, 1, 1, 0, 0, covered=2))
    assert [share.start for share in ledger.pool.hands[1].shares] == [2]
    ledger.apply(Gone(1, 1))
    ledger.apply(Draw(0, 1, 0, 0, TOTAL, DIGEST, 3))
    drawn = [item for share in ledger.pool.hands[0].shares for item in range(share.start, share.stop)]
    assert drawn == [0, 1, 2]


def test_a_rank_that_finished_draws_nothing():
    ranks = Ranks()
    ranks.ledger.apply(Finish(0, 1))
    assert ranks.draw(0) is OutcomeKind.IGNORED
