"""The log of all hosts: every inbox gets there once and in order, whoever stops, dies, takes over or writes late."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.protocol import shared_log
from outpace.protocol.hosts import Hosts
from outpace.protocol.rules import Rules
from outpace.protocol.shared_log import RETURN_AFTER, Batch, Forward, LogWriter

COUNT, PATIENCE_S, MOST_BYTES = 4, 1.0, 5
RULES = Rules(COUNT, hosts=tuple(range(COUNT)))


class Host:
    """A host's inbox, and its agent with what it has read. A record is one byte."""

    def __init__(self, cluster: Cluster, number: int, life: int) -> None:
        self.cluster, self.number, self.life = cluster, number, life
        self.inbox = b""
        self.kept = len(cluster.log)  # entries that outlive an agent: a new one begins there
        self.start_agent()

    def start_agent(self) -> None:
        self.hosts, self.read = Hosts(RULES), 0
        self.writer = LogWriter(self.number, self.life, self.hosts, PATIENCE_S, MOST_BYTES)
        while self.read < self.kept:
            self.take()

    def take(self) -> None:
        for batch in self.cluster.log[self.read]:
            self.hosts.commit(batch.host, batch.life, batch.end)
        self.read += 1

    def look(self) -> None:
        if self.read < len(self.cluster.log):
            self.take()

    def act(self, is_heard: bool = True) -> None:
        """One step of its agent. One that is not heard has written, and the answer is on its way."""
        step = self.writer.next(lambda start: self.inbox[start : start + 3], self.cluster.now)
        if isinstance(step, Forward):
            assert step.host != self.number
            assert sum(len(batch.records) for batch in step.batches) <= MOST_BYTES
            self.cluster.mail.append(step)
        elif step is not None:
            if self.read == len(self.cluster.log):  # compare-and-set: else another one was first
                self.cluster.log.append(step.batches)
            if is_heard:
                self.take()


class Cluster:
    def __init__(self) -> None:
        self.log: list[tuple[Batch, ...]] = []
        self.mail: list[Forward] = []
        self.now, self.said = 0.0, 0
        self.inboxes: dict[tuple[int, int], bytes] = {}
        self.hosts = [Host(self, number, 1) for number in range(COUNT)]

    def say(self, host: int) -> None:
        self.said += 1
        mine = self.hosts[host]
        mine.inbox += bytes([self.said % 251])
        self.inboxes[host, mine.life] = mine.inbox

    def receive(self, number: int, keep: bool) -> None:
        """A message comes: in any order, and maybe again later."""
        if self.mail:
            step = self.mail[number % len(self.mail)] if keep else self.mail.pop(number % len(self.mail))
            for batch in step.batches:
                self.hosts[step.host].writer.offer(batch, step.leader)

    def lose(self, number: int) -> None:
        if self.mail:
            self.mail.pop(number % len(self.mail))

    def kill(self, host: int, number: int) -> None:
        mine = self.hosts[host]
        mine.kept = max(mine.kept, min(mine.read, mine.kept + number))
        mine.start_agent()

    def restart(self, host: int) -> None:
        """The machine: what only its inbox had is gone."""
        self.hosts[host] = Host(self, host, self.hosts[host].life + 1)

    def regroup(self, host: int, number: int) -> None:
        """Each agent learns of a group at another time; some are in none."""
        group = [other for other in range(COUNT) if number >> other & 1 or other == host]
        self.hosts[host].writer.regroup(group if number else ())

    def in_log(self) -> dict[tuple[int, int], bytes]:
        found: dict[tuple[int, int], bytes] = {}
        for batch in (batch for entry in self.log for batch in entry):
            which = batch.host, batch.life
            assert batch.start == len(found.get(which, b"")), "something is missing before it, or it is there already"
            found[which] = found.get(which, b"") + batch.records
        return found

    def check(self) -> None:
        for which, records in self.in_log().items():
            assert self.inboxes[which].startswith(records)
        assert all(sum(len(b.records) for b in entry) <= MOST_BYTES for entry in self.log)

    def heal(self) -> None:
        """All are connected, and everybody comes to act."""
        for host in range(COUNT):
            self.regroup(host, (1 << COUNT) - 1)

    def turn(self) -> None:
        for host in self.hosts:
            while host.read < len(self.log):
                host.look()
            host.act()
        while self.mail:
            self.receive(0, keep=False)


def anybody(cluster: Cluster, number: int) -> Host:
    return cluster.hosts[number % COUNT]


ACTIONS = {
    "say": (lambda c, n: c.say(n % COUNT), 6),
    "act": (lambda c, n: anybody(c, n).act(), 8),
    "act unheard": (lambda c, n: anybody(c, n).act(is_heard=False), 2),
    "look": (lambda c, n: anybody(c, n).look(), 6),
    "receive": (lambda c, n: c.receive(n, keep=False), 6),
    "receive twice": (lambda c, n: c.receive(n, keep=True), 1),
    "lose": (lambda c, n: c.lose(n), 1),
    "kill": (lambda c, n: c.kill(n % COUNT, n // COUNT), 1),
    "restart": (lambda c, n: c.restart(n % COUNT), 1),
    "regroup": (lambda c, n: c.regroup(n % COUNT, n // COUNT), 3),
    "wait": (lambda c, n: setattr(c, "now", c.now + n / 8), 3),
}
NAMES = [name for name, (_, weight) in ACTIONS.items() for _ in range(weight)]
FAN_OUTS = [1, 2, 8]  #: 1: the hosts are a chain; 8: all are children of the first
CHOICES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 63)), max_size=120)


@settings(deadline=None, max_examples=600)
@given(CHOICES, st.sampled_from(FAN_OUTS))
def test_every_inbox_is_in_the_log_once_and_in_order_and_all_of_it_in_the_end(choices, fan_out):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_log, "FAN_OUT", fan_out)
        play(choices)


def play(choices: list[tuple[str, int]]) -> None:
    cluster = Cluster()
    for name, number in choices:
        ACTIONS[name][0](cluster, number)
        cluster.check()
    cluster.heal()
    for _ in range(len(choices) + COUNT * 10):
        cluster.now += PATIENCE_S / 4
        cluster.turn()
    cluster.check()
    found = cluster.in_log()
    for host in cluster.hosts:
        assert found.get((host.number, host.life), b"") == host.inbox


def test_one_host_writes_for_all_and_nobody_races():
    cluster = Cluster()
    cluster.heal()
    for host in range(COUNT):
        cluster.say(host)
    cluster.turn()
    cluster.turn()
    assert [[batch.host for batch in entry] for entry in cluster.log] == [[0], [1, 2, 3]]


def test_a_leader_that_does_not_answer_is_passed_over_and_tried_again_later():
    cluster = Cluster()
    cluster.heal()
    writer = cluster.hosts[2].writer
    leaders = []
    cluster.say(2)
    while not cluster.log:
        cluster.hosts[2].act()  # nothing that it sends arrives
        leaders.append(writer.leader)
        cluster.now += 0.6 * PATIENCE_S
    assert list(dict.fromkeys(leaders)) == [0, 1, 2]
    cluster.say(2)
    cluster.hosts[2].act()
    assert len(cluster.log) == 2, "it writes for itself meanwhile"
    cluster.now += RETURN_AFTER * PATIENCE_S
    cluster.say(2)
    cluster.hosts[2].act()
    assert (writer.leader, len(cluster.log)) == (0, 2)


def test_without_a_group_every_host_writes_for_itself():
    cluster = Cluster()
    for host in range(COUNT):
        cluster.say(host)
    for _ in range(COUNT):
        cluster.turn()
    assert sorted(batch.host for entry in cluster.log for batch in entry) == list(range(COUNT))
    assert not cluster.mail


def test_the_leader_gets_one_message_of_each_child_while_an_entry_is_written(monkeypatch):
    monkeypatch.setattr(shared_log, "FAN_OUT", 1)
    cluster = Cluster()
    cluster.heal()
    for host in (3, 2, 1):
        cluster.say(host)
        cluster.hosts[host].act()
    for _ in range(5):  # what is said while a message is under way waits for its entry
        cluster.say(3)
        cluster.hosts[3].act()
    assert [(step.host, [batch.host for batch in step.batches]) for step in cluster.mail] == [
        (2, [3]),
        (1, [2]),
        (0, [1]),
    ]
    while cluster.mail:
        cluster.receive(0, keep=False)
    for _ in range(20):
        cluster.turn()
    assert cluster.in_log()[3, 1] == cluster.hosts[3].inbox
