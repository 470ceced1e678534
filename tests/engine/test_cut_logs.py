"""Logs that are cut, between hosts: whoever is stopped where, and whatever is given back meanwhile.

A rank that wakes up knows what is in the log, its own records among it, and waits only for what is not.

One host in this process, with a real arena, inbox, log of all hosts and delivery; ranks and agent take turns.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from outpace.engines.arena import arena, log
from outpace.engines.arena.kernel import Arena, Bell, Faults, Life
from outpace.engines.arena.layout import ArenaLayout
from outpace.engines.arena.log import RECORD_BYTES, ArenaLog, encode
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.engines.cluster.delivery import Delivery
from outpace.engines.cluster.log import ClusterLog
from outpace.engines.cluster.shared_page import Inbox, Progress, SentLog, SharedPage
from outpace.engines.cluster.store_log import Entry, StoreLog, pack
from outpace.errors import TimedOut
from outpace.interface import Contents
from outpace.protocol.events import Agent, Arrive, Claim, Event, Join, OutcomeKind, Snapshot, Tell
from outpace.protocol.hosts import Hosts
from outpace.protocol.ledger import Ledger
from outpace.protocol.round import Results
from outpace.protocol.rules import Rules
from outpace.protocol.shared_log import Batch

RULES = Rules(4, hosts=(0, 0, 0, 1), grace=0, quorum="majority", min_ranks=1)
RANKS, ELSEWHERE = (0, 1, 2), 3
KEY, PAGE = bytes(32), 4096
TIMEOUT_S = 5.0


class Waits(Exception):
    """A rank would wait for its agent now."""


class Killed(Exception):
    """This agent is no more."""


class NoAgentToStart:
    """In place of what looks after the agent's process: who comes here is about to wait."""

    def look(self) -> None:
        raise Waits


class NobodyElse:
    """In place of the group of agents: the other host fetches at once what it wants."""

    def within_group(self, do, can) -> None:
        return


class MortalDelivery(Delivery):
    """Can be killed between any two records."""

    left = -1  #: records until then

    def _deliver(self, event: Event, record: bytes) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1
        super()._deliver(event, record)


class Host:
    """One host and its ranks."""

    def __init__(self) -> None:
        sizes = {"chunks": 1, "tensors": 1, "hyper_bytes": 64, "buffer_bytes": 0, "extra_bytes": 0, "header_bytes": 64}
        layout = ArenaLayout.of(world=4, slots=Results(RULES).slots, vector_bytes=64, **sizes)
        self.files = arena.create_files()
        os.ftruncate(self.files.arena, layout.total_bytes)
        self.memory = Arena(self.files.arena, layout)
        self.desk, self.snapshots = SharedPage(self.memory), SnapshotStore(self.memory)
        self.store = HashStore()
        self.entries: list[Entry] = []  # read, and not delivered
        self.entries_elsewhere: list[Entry] = []
        self.log_elsewhere = StoreLog(self.store, "all", KEY, Progress(), self.entries_elsewhere.append)
        self.said_elsewhere = 0  # bytes of the other host's inbox
        self.versions, self.serials = itertools.count(1), itertools.count(1)
        self.ranks = {rank: self.watch(rank) for rank in RANKS}
        self.unfolded: dict[int, tuple[int, int]] = {}  # rank -> what it has told last, until it has folded that
        self.start_agent()
        self.say_elsewhere([Agent(1, 1), Join(ELSEWHERE, 1)])
        self.inbox.put(Agent(0, 1), 0)
        for rank in RANKS:
            self.ranks[rank].file.append(Join(rank, 1))
        self.commit()
        self.deliver()
        self.snapshot(0)  # what a log that is cut is read from

    def watch(self, rank: int) -> ClusterLog:
        sent = SentLog(self.files.log, Inbox(self.files.inbox, self.desk), self.desk)
        made = ClusterLog(NoAgentToStart(), rank, RULES, sent, *self.rest())
        made.incarnation = 1
        return made

    def close(self) -> None:
        self.files.close()

    def rest(self) -> tuple:
        return self.snapshots, Bell(self.memory.word), Life(self.files.life), Faults(), TIMEOUT_S

    # -- the agent -------------------------------------------------------------------------------------------------

    def start_agent(self) -> None:
        """The first one, or one that follows: all it knows lies in the arena and in the store."""
        self.entries.clear()
        self.inbox = Inbox(self.files.inbox, self.desk)
        watch = ArenaLog(4, RULES, log.LogFile(self.files.log), *self.rest())
        bell = Bell(self.memory.word)
        self.delivery = MortalDelivery(
            *(self.files.log, self.inbox, watch, self.desk, bell, self.snapshots, NobodyElse(), None, 0, False),
            lambda sealed, generation: None,
        )
        self.read_hosts = Hosts(RULES).with_state(watch.ledger.hosts.to_state())
        self.log = StoreLog(self.store, "all", KEY, self.desk.progress, self.accept)

    @property
    def committed(self) -> int:
        return self.read_hosts.committed_of(0, 0)

    def accept(self, entry: Entry) -> None:
        for batch, _ in entry.batches():
            self.read_hosts.commit(batch.host, batch.life, batch.end)
        self.entries.append(entry)

    def commit(self, most: int = 512) -> None:
        """Until something of this host is in the log of all, or there is nothing."""
        before = self.committed
        while self.committed == before and (records := self.inbox.read(self.committed, most)):
            self.log.write([Batch(0, 0, self.committed, records)])

    def deliver(self, records: int = -1) -> None:
        """All that there is, or so many records, and then it is killed."""
        self.delivery.left = records
        while self.store.check([self.log._at(self.log._next)]):
            self.log.read()
        try:
            while self.entries:
                self.delivery.deliver(self.entries[0])
                self.entries.pop(0)
        except Killed:
            self.start_agent()

    # -- ranks -----------------------------------------------------------------------------------------------------

    def tell(self, rank: int) -> None:
        """The rank is stopped before it looks whether that is in the log."""
        if rank not in self.unfolded:
            self.unfolded[rank] = number, _ = next(self.serials), 0
            self.ranks[rank].file.append(Tell(rank, 1, number, 0, 1.0))

    def wake(self, rank: int) -> None:
        """The rank goes on. It waits if the batch with what it told is not in this host's log, and only then."""
        watch, told = self.ranks[rank], self.unfolded.get(rank)
        is_there = told is None or self.delivery._log.ledger.hosts.committed_of(0, 0) >= watch.file._sent
        with contextlib.nullcontext() if is_there else pytest.raises(Waits):
            watch._until_folded()
        if is_there:
            self.unfolded.pop(rank, None)
            assert told is None or told in watch.ledger.told[rank]
        watch.look()
        assert known(watch.ledger) == known(self.delivery._log.ledger)

    def snapshot(self, rank: int) -> None:
        """As a rank writes one. What others want to say goes into the log with it."""
        watch = self.ranks[rank]
        if rank in self.unfolded:
            return
        watch.look()
        buffer = watch.ledger.snapshots.free_buffer(rank)
        self.append(watch, Claim(rank, 1, buffer))
        version, position = next(self.versions), watch.position
        self.snapshots.write(buffer, Contents([], {}), watch.ledger.to_state(version), position)
        self.append(watch, Snapshot(rank, 1, buffer, version, position))
        self.snapshots.announce(buffer)
        watch.file.cut(position)

    def append(self, watch: ClusterLog, event: Event) -> None:
        watch.file.append(event)
        while self.inbox.read(self.committed, 1):
            self.commit()
        self.deliver()
        watch._until_folded()

    def all_is_said(self) -> None:
        """Everybody goes on until nobody waits."""
        while self.inbox.read(self.committed, 1):
            self.commit()
        self.deliver()
        for rank in RANKS:
            self.wake(rank)
        assert not self.unfolded

    def say_elsewhere(self, events: list[Event]) -> None:
        """The other host is first with these."""
        batch = Batch(1, 0, self.said_elsewhere, b"".join(map(encode, events)))
        while not self.entries_elsewhere or self.entries_elsewhere[-1].records != pack([batch]):
            self.log_elsewhere.write([batch])
        self.said_elsewhere = batch.end

    def tell_elsewhere(self, number: int) -> None:
        self.say_elsewhere([Tell(ELSEWHERE, 1, next(self.serials), 0, 0.0) for _ in range(number)])


def known(ledger: Ledger) -> str:
    return json.dumps(ledger.to_state(ledger.round))


def held_bytes(fd: int) -> int:
    return 512 * os.fstat(fd).st_blocks


@pytest.fixture(autouse=True)
def short_logs(monkeypatch):
    monkeypatch.setattr(log, "CUT_AT_BYTES", PAGE)


@pytest.fixture
def host():
    with contextlib.closing(Host()) as made:
        yield made


ACTIONS = {
    "tell": (lambda host, n: host.tell(n % 3), 6),
    "commit": (lambda host, n: host.commit(1 + n % 3), 3),
    "deliver": (lambda host, n: host.deliver(), 2),
    "killed": (lambda host, n: host.deliver(records=n % 4), 2),
    "wake": (lambda host, n: host.wake(n % 3), 5),
    "snapshot": (lambda host, n: host.snapshot(n % 3), 3),
    "elsewhere": (lambda host, n: host.tell_elsewhere(10 * n), 4),
}
NAMES = [name for name, (_, weight) in ACTIONS.items() for _ in range(weight)]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 9)), min_size=40, max_size=80))
def test_a_rank_that_wakes_up_waits_only_for_what_is_not_in_the_log(choices):
    with contextlib.closing(Host()) as host:
        for name, number in choices:
            ACTIONS[name][0](host, number)
        host.all_is_said()


def test_one_whose_own_record_was_given_back_finds_it_in_the_snapshot(host):
    host.tell(1)
    for _ in range(4):
        host.tell_elsewhere(64)
        host.snapshot(0)
    with pytest.raises(log.LogCut):
        host.ranks[1].file.read(host.ranks[1].position)
    host.wake(1)


def test_a_batch_in_the_middle_of_which_an_agent_was_killed_is_there_when_the_next_one_has_ended_it(host):
    host.tell(1)
    host.tell(2)
    host.commit()
    host.deliver(records=1)
    for rank in (1, 2):
        host.wake(rank)
    assert set(host.unfolded) == {1, 2}
    host.deliver()
    for rank in (1, 2):
        host.wake(rank)
    assert not host.unfolded


def test_an_append_answers_for_its_own_event_once_that_is_back(host, monkeypatch):
    def agent_at_work(_) -> None:
        host.commit()
        host.deliver()

    monkeypatch.setattr(NoAgentToStart, "look", agent_at_work)
    one, other = host.ranks[1], host.ranks[2]
    one.look()
    buffer = one.ledger.snapshots.free_buffer(1)
    host.inbox.put(Claim(2, 1, buffer), 0)  # said by another rank of the host before
    assert one.append(Claim(1, 1, buffer)).kind is OutcomeKind.IGNORED
    assert other.append(Snapshot(2, 1, buffer, next(host.versions), 0)).kind is OutcomeKind.TAKEN
    assert one.append(Arrive(1, 1, 1, 0, 0)).kind is OutcomeKind.ON_TIME
    assert one.append(Arrive(1, 1, 1, 0, 0)).kind is OutcomeKind.REPEATED


def test_the_inbox_and_the_log_take_no_more_room_the_longer_it_goes_on(host):
    most, pages = 0, 20
    for _ in range(pages):
        for _ in range(PAGE // RECORD_BYTES):
            host.append(host.ranks[1], Tell(1, 1, 0, 0, 0.0))
        host.snapshot(0)
        most = max(most, held_bytes(host.files.inbox), held_bytes(host.files.log))
    assert os.fstat(host.files.inbox).st_size >= pages * PAGE
    assert most <= 4 * PAGE


def test_one_that_finds_no_snapshot_to_go_on_from_says_so_in_time(host):
    host.tell(1)
    for _ in range(4):
        host.tell_elsewhere(64)
        host.snapshot(0)
    host.snapshots.forget(host.snapshots.hinted())  # whoever was about to write another one is gone
    with pytest.raises(TimedOut, match="no longer in the log, and no snapshot"):
        host.ranks[1].look()


def test_how_far_the_agent_is_can_be_looked_at_whatever_it_is_writing(host):
    desk, before = host.desk, host.desk.progress
    page, turn = bytes(desk._page), desk._last_turn()[0]
    desk.progress = after = before._replace(entries=before.entries + 1, chain=bytes(range(32)))
    written = bytes(desk._page)
    changed = [place for place in range(len(page)) if page[place] != written[place]]
    for count in range(len(changed)):
        desk._page[:] = page
        for place in changed[:count]:
            desk._page[place] = written[place]
        assert desk._last_turn() == (turn, before)
    desk._page[:] = written
    assert desk.progress == after
