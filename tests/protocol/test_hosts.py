"""Several hosts: agents that begin, hosts that are given up and come back, at any place in the log."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.protocol.events import Agent, Arrive, Claim, Dead, Done, Event, Gone, Outcome, Snapshot
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules
from tests.support.protocol.logs import arrive, join

HOSTS = (0, 0, 1, 1, 2)
WORLD, COUNT = len(HOSTS), max(HOSTS) + 1


def agent(host: int, serial: int) -> Event:
    return Agent(host, serial)


def gone(host: int, serial: int) -> Event:
    return Gone(host, serial)


def done(ledger: Ledger, host: int) -> Event:
    sealed = ledger.reducing
    return Done(host, sealed.number, sealed.attempt, sealed.slot)


class Cluster:
    """A ledger for each host, all of one log, and an account of every contribution kept beside them."""

    def __init__(self, **choices) -> None:
        rules = Rules(WORLD, **{"grace": 0, "quorum": "majority", "min_ranks": 1, **choices}, hosts=HOSTS)
        self.ledgers = [Ledger(rules, host) for host in range(COUNT)]
        self.given: dict[tuple[int, int, int], int] = {}  # contribution -> its place in the log
        self.given_up = [-1] * COUNT  # where in the log a host was given up last
        self.applied: dict[int, list[tuple[int, int, int]]] = {}
        self.has: dict[int, set[int]] = {}  # round -> hosts that have its result, and were not lost
        self.ready: tuple[tuple[int, int], set[int]] = ((-1, 0), set())  # an attempt, and the hosts it has ended on
        self.serials, self.length = [0] * COUNT, 0
        self.lives, self.steps = [1] * WORLD, [0] * WORLD
        for host in range(COUNT):
            self.begin(host)
        for rank in range(WORLD):
            self.say(join(rank))

    @property
    def ledger(self) -> Ledger:
        return self.ledgers[0]

    def say(self, event: Event) -> Outcome:
        """Everybody reads it."""
        before = self.ledger.reducing
        outcomes = {ledger.apply(event) for ledger in self.ledgers}
        assert len(outcomes) == 1
        self.length += 1
        if not (outcome := outcomes.pop()).is_ignored:
            self._account(event, before)
        return outcome

    def _account(self, event, before) -> None:
        if isinstance(event, Arrive):
            self.given[event.rank, event.incarnation, event.step] = self.length
        if isinstance(event, Gone):
            self.given_up[event.host] = self.length
            for hosts in self.has.values():
                hosts.discard(event.host)
        for number, record in self.ledger.completed.items():
            if number not in self.applied:
                self.applied[number] = [] if record.void else [c[:3] for c in record.contributions]
                had = set(self.ready[1])
                self.has[number] = had if not record.void else set(range(COUNT))
                if isinstance(event, Done):
                    assert before is not None
                    assert self.ledger.hosts.living <= had, "a living host does not have the result"
                for key in self.applied[number]:
                    assert self.given[key] > self.given_up[HOSTS[key[0]]], "work of a host that was given up"

    def begin(self, host: int) -> None:
        self.serials[host] += 1
        self.say(agent(host, self.serials[host]))

    def give_up(self, host: int) -> None:
        self.say(gone(host, self.serials[host]))

    def step(self, rank: int, lag: int = 0) -> None:
        """As a rank does: comes back if it was given up, and contributes if it has a row for it."""
        ledger = self.ledger
        member = ledger.members.by_rank[rank]
        if HOSTS[rank] not in ledger.hosts.living:
            return
        if not member.alive:
            self.lives[rank] += 1
            self.say(join(rank, self.lives[rank]))
        row = ledger.free_row(rank)
        if row is not None and member.state == "active":
            self.steps[rank] += 1
            version = max(0, ledger.complete - lag)
            self.say(arrive(rank, version, self.steps[rank], row=row, incarnation=self.lives[rank]))

    def reduce(self, host: int) -> None:
        """A host has the result of the current attempt. The last one's word goes to whoever says it for all."""
        sealed, living = self.ledger.reducing, self.ledger.hosts.living
        if sealed is None or host not in living:
            return
        attempt = (sealed.number, sealed.attempt)
        self.ready = (attempt, (self.ready[1] if self.ready[0] == attempt else set()) | {host})
        if living <= self.ready[1]:
            self.say(done(self.ledger, min(living)))

    def complete(self) -> None:
        for host in range(COUNT):
            self.reduce(host)

    def die(self, rank: int) -> None:
        self.say(Dead(rank, self.lives[rank]))

    def snapshot(self, rank: int, lag: int) -> None:
        """Of a replica that lags so far."""
        buffer = self.ledgers[HOSTS[rank]].snapshots.free_buffer(rank)
        version, position = max(0, self.ledger.complete - lag), self.length
        self.say(Claim(rank, self.lives[rank], buffer))
        self.say(Snapshot(rank, self.lives[rank], buffer, version, position))

    def lose_place(self, host: int, lag: int) -> None:
        """The log is cut before somebody there has read it, who takes the ledger from such a replica's snapshot."""
        state = json.dumps(self.ledgers[host].to_state(max(0, self.ledger.complete - lag)))
        self.ledgers[host] = Ledger.from_state(self.ledger.rules, json.loads(state), host)

    def check(self) -> None:
        self._check_exactly_once()
        self._check_results()
        self._check_state()
        self._check_agreement()

    def _check_exactly_once(self) -> None:
        ledger = self.ledger
        applied = Counter(c for members in self.applied.values() for c in members)
        pending = [c[:3] for c in [*ledger.on_time, *ledger.carried]]
        pending += [c[:3] for c in ledger.reducing.contributions] if ledger.reducing else []
        assert max((applied + Counter(pending)).values(), default=0) <= 1
        assert set(applied) | set(pending) <= set(self.given)
        tallies = ledger.members.tallies.values()
        assert sum(t.on_time + t.carried for t in tallies) == len(applied)
        assert sum(t.dropped for t in tallies) == len(self.given) - len(applied) - len(pending)

    def _check_results(self) -> None:
        for ledger in self.ledgers:
            for number, record in ledger.completed.items():
                if ledger.has_result(number) and not record.void:
                    assert ledger.host in self.has[number], f"host {ledger.host} never had round {number}"

    def _check_state(self) -> None:
        plain = json.loads(json.dumps(self.ledger.to_state()))
        again = Ledger.from_state(self.ledger.rules, plain)
        assert json.loads(json.dumps(again.to_state())) == plain

    def _check_agreement(self) -> None:
        """Whether they have read the log or took up a snapshot: one that puts a result elsewhere reads another."""
        known = [json.dumps(ledger.to_state(ledger.round)) for ledger in self.ledgers]
        assert len(set(known)) == 1
        assert len({(*ledger.free_slots(), *ledger.without_snapshot()) for ledger in self.ledgers}) == 1


ACTIONS = {
    "step": (lambda c, n, m: c.step(n % WORLD, m % 3), 6),
    "reduce": (lambda c, n, m: c.reduce(n % COUNT), 8),
    "complete": (lambda c, n, m: c.complete(), 4),
    "give_up": (lambda c, n, m: c.give_up(n % COUNT), 1),
    "begin": (lambda c, n, m: c.begin(n % COUNT), 2),
    "die": (lambda c, n, m: c.die(n % WORLD), 1),
    "snapshot": (lambda c, n, m: c.snapshot(n % WORLD, m % 5), 3),
    "lose_place": (lambda c, n, m: c.lose_place(1 + n % (COUNT - 1), m % 5), 3),
}
NAMES = [name for name, (_, weight) in ACTIONS.items() for _ in range(weight)]
ACTION = st.tuples(st.sampled_from(NAMES), st.integers(0, 9), st.integers(0, 9))
CHOICES = st.lists(ACTION, min_size=40, max_size=120)  # left to itself, hypothesis tries some five


@settings(deadline=None, max_examples=30)
@given(
    CHOICES,
    st.sampled_from(["solo", "majority", "full"]),
    st.sampled_from(["carry", "count", "drop"]),
    st.sampled_from([1, 2, 8]),
)
def test_nothing_is_lost_or_doubled_whichever_hosts_are_given_up_when(choices, quorum, late, kept):
    cluster = Cluster(quorum=quorum, late=late, max_staleness=kept)
    for name, number, other in choices:
        ACTIONS[name][0](cluster, number, other)
        cluster.check()


def test_a_ledger_that_was_taken_from_a_snapshot_knows_which_hosts_need_the_next_one():
    """It knows only the places of the results that the snapshot covers. They are kept all the same."""
    cluster = Cluster(quorum="solo", max_staleness=3)
    for number in range(6):
        cluster.step(0)
        cluster.complete()
        if number == 2:
            for rank in (0, 2, 4):
                cluster.snapshot(rank, lag=0)
    cluster.lose_place(1, lag=1)
    cluster.check()


@settings(deadline=None, max_examples=50)
@given(CHOICES)
def test_whoever_is_left_goes_on(choices):
    cluster = Cluster(quorum="majority")
    for name, number, other in choices:
        ACTIONS[name][0](cluster, number, other)
    for host in range(COUNT):
        cluster.begin(host)
    began = cluster.ledger.complete
    for _ in range(3):
        for rank in range(WORLD):
            cluster.step(rank)
        for host in (*range(COUNT), *range(COUNT)):
            cluster.reduce(host)
    cluster.check()
    assert cluster.ledger.complete > began


def test_a_round_is_complete_when_every_living_host_has_it():
    cluster = Cluster(quorum="full")
    for rank in range(WORLD):
        cluster.step(rank)
    cluster.reduce(0)
    cluster.reduce(2)
    assert cluster.ledger.complete == 0
    cluster.reduce(1)
    assert cluster.ledger.complete == 1


def test_a_round_is_reduced_again_without_the_work_of_a_host_that_is_given_up():
    cluster = Cluster(quorum="full")
    for rank in range(WORLD):
        cluster.step(rank)
    cluster.reduce(2)
    cluster.give_up(2)
    sealed = cluster.ledger.reducing
    assert ([c.rank for c in sealed.contributions], sealed.attempt) == ([0, 1, 2, 3], 1)
    cluster.reduce(0)
    cluster.reduce(1)
    assert [c[0] for c in cluster.applied[0]] == [0, 1, 2, 3]
    assert not cluster.ledgers[2].has_result(0), "it had another result"
    assert cluster.ledger.members.tallies[4].dropped == 1


@pytest.mark.parametrize("late", [agent(1, 1), gone(1, 0)])
def test_what_is_said_of_an_older_agent_changes_nothing(late):
    cluster = Cluster()
    assert cluster.say(late).is_ignored
    assert cluster.ledger.hosts.living == {0, 1, 2}
