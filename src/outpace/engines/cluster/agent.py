"""The agent of one host: a process of its own, outside the ranks' interpreters. Owns its threads and its end.

    commit   this host's inbox, and what other hosts send to it, into the log of all hosts (the main thread)
    read     what the hosts have committed
    deliver  all of it into this host's log, with its data
    reduce   sealed rounds over all hosts
    beat     signs of life, and who has given none
    watch    whether the store still answers: the others hang in their calls when it does not

It ends when no rank of its host is left. If it is killed, one that it forked goes on; if that is, the ranks start one.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import DistNetworkError, DistStoreError

from outpace.engines.arena.kernel import Arena, Bell, Faults, Life
from outpace.engines.arena.layout import ArenaLayout
from outpace.engines.arena.log import RECORD_BYTES, ArenaLog, LogFile
from outpace.engines.arena.memory import Holds, tag
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.engines.cluster.backend import address_towards_store, be_quiet, make_room
from outpace.engines.cluster.delivery import Delivery, Transfers
from outpace.engines.cluster.group import Abandoned, Group
from outpace.engines.cluster.host_means import HostMeans
from outpace.engines.cluster.joining import PLACE, JoinHandler, Question
from outpace.engines.cluster.leases import (
    WATCHED_BY_ALL,
    Leases,
    beat_s,
    group_s,
    lease_s,
    replaced,
    store_s,
    watched,
)
from outpace.engines.cluster.membership import Membership
from outpace.engines.cluster.reducer import HostReducer
from outpace.engines.cluster.relay import Offered, Passed, Relay
from outpace.engines.cluster.sealing import SealedStore
from outpace.engines.cluster.shared_page import FAILED, LEFT, RUNNING, STORE_LOST, Inbox, SharedPage
from outpace.engines.cluster.store_log import MOST_RECORDS, Entry, StoreLog
from outpace.engines.cluster.supervisor import LaunchSpec, cluster_of
from outpace.engines.sums import RowSums
from outpace.errors import OutpaceError
from outpace.job.environment import joined_store
from outpace.job.machine import cores
from outpace.job.store import address
from outpace.protocol.events import Agent as AgentBegins
from outpace.protocol.events import Dead, Event, Gone
from outpace.protocol.hosts import Hosts
from outpace.protocol.round import Round
from outpace.protocol.rules import Rules
from outpace.protocol.shared_log import Batch, Forward, LogWriter
from outpace.vector import Chunk

log = logging.getLogger("outpace")

_REST_S = 0.05  #: the longest the main thread sleeps before it looks after its ranks
_KEPT_ENTRIES = 100_000  #: of the log, for a host that was given up and may come back


class Agent:
    def __init__(self, spec: LaunchSpec) -> None:
        self._rules = rules = Rules.from_dict(spec.rules)
        self._host, self._timeout_s = spec.host, spec.timeout_s
        arena_fd, log_fd, life_fd, inbox_fd = spec.fds
        layout = ArenaLayout(**spec.layout)
        self._memory = memory = Arena(arena_fd, layout)
        self._life = Life(life_fd)
        self._page = page = SharedPage(memory)
        self._inbox, self._bell = Inbox(inbox_fd, page), Bell(page.bell)
        self._ranks = Hosts(rules).ranks[spec.host]
        self._store = joined_store()
        self._prefix = cluster_of(spec.name)
        self._snapshots = snapshots = SnapshotStore(memory)
        rest = (snapshots, Bell(memory.word), self._life, Faults(), spec.timeout_s)
        self._host_log = ArenaLog(layout.world, rules, LogFile(log_fd), *rest, host=spec.host)
        self._read_hosts = Hosts(rules)
        self._membership = Membership(
            self._read_hosts, spec.host, self._connect, self._regroup, self._begin, lease_s(spec.timeout_s)
        )
        self._attempts: queue.SimpleQueue[tuple[Round, int]] = queue.SimpleQueue()
        self._entries: queue.SimpleQueue[Entry | Question] = queue.SimpleQueue()
        self._delivery = Delivery(
            *(log_fd, self._inbox, self._host_log, page, Bell(memory.word), snapshots, self._membership),
            HostMeans(memory, _chunks(spec.published), rules, spec.host),
            *(spec.host, spec.has_buffers, lambda sealed, gen: self._attempts.put((sealed, gen))),
        )
        self._read_hosts.with_state(self._host_log.ledger.hosts.to_state())
        self._log = StoreLog(self._store, self._prefix, page.key, page.progress, self._accept)
        self._writing = threading.Lock()
        most_bytes = MOST_RECORDS * RECORD_BYTES
        self._writer = LogWriter(spec.host, page.life, self._read_hosts, beat_s(spec.timeout_s), most_bytes)
        self._relay: Relay | None = None
        self._join_handler = JoinHandler(SealedStore(self._store.clone(), page.key, f"{self._prefix}/{PLACE}"))
        me = (spec.host, page.life)
        self._leases = Leases(self._store.clone(), self._prefix, page.key, *me, lease_s(spec.timeout_s))
        sums = RowSums(memory.bytes, _chunks(spec.chunks), rules, spec.max_grad_norm)
        self._reducer = HostReducer(
            *(memory, sums, Holds(memory, layout.world)),
            *(spec.host, self._read_hosts.of, spec.tensors),
            *(self._is_current, self._users, lambda: self._host_log.ledger.free_slots()),
        )
        self._ends = SealedStore(self._store, page.key, f"{self._prefix}/ended")
        self._store_answered = time.monotonic()
        self._reported_dead: set[tuple[int, int]] = set()
        self._given_up: set[tuple[int, int]] = set()
        self._address = address_towards_store()
        self._serial = 0
        self._ended: float | None = None  # since when all is done here

    # -- threads ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._begin()
        for work in (self._read, self._deliver, self._reduce, self._beat, self._watch_store):
            threading.Thread(target=self._guarded, args=(work,), name=work.__name__, daemon=True).start()
        self._guarded(self._commit)
        self._leave()

    def _guarded(self, work: Callable[[], None]) -> None:
        """A thread that fails ends the agent. Where another agent would fail likewise, the ranks learn why."""
        try:
            work()
        except OutpaceError as error:
            self._give_up(FAILED, str(error))
        except (DistNetworkError, DistStoreError, ConnectionError) as error:
            if self._host_log.ledger.ended:
                self._leave()  # all is done, and whoever held the store has left
            self._give_up(STORE_LOST, store_lost(self._host, str(error).splitlines()[0]))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _commit(self) -> None:
        looked = 0.0
        while True:
            shown, now = self._bell.value(), time.monotonic()
            if self._commit_some(now):
                continue
            if now - looked > _REST_S:
                looked = now
                if self._look_after_ranks():
                    return
            self._bell.wait(shown, _REST_S)

    def _commit_some(self, now: float) -> bool:
        """Whether there was anything to commit, or to have committed by another host."""
        with self._writing:
            step, relay = self._writer.next(self._inbox_from, now), self._relay
        if step is None:
            return False
        if isinstance(step, Forward):
            if relay is not None:
                relay.forward(step)
        elif (written := self._log.write(step.batches)) is not None and relay is not None:
            relay.spread(*written)
        return True

    def _inbox_from(self, position: int) -> bytes:
        return self._inbox.read(position, MOST_RECORDS)

    def _regroup(self, group: Group | None) -> None:
        """The agents are connected now, or no longer. Without a relay every agent writes for itself."""
        with self._writing:
            self._relay = Relay(group, self._take_message) if group and len(group.hosts) > 1 else None
            self._writer.regroup(group.hosts if group and self._relay else ())
        self._bell.ring()

    def _take_message(self, message: Offered | Passed) -> None:
        if isinstance(message, Passed):
            self._log.pass_in(*message)
            return
        with self._writing:
            for batch in message.batches:
                self._writer.offer(batch, message.leader)
        self._bell.ring()

    def _read(self) -> None:
        while True:
            if self._relay is None:
                self._log.read()
            else:
                self._log.follow(beat_s(self._timeout_s))

    def _accept(self, entry: Entry) -> None:
        self._entries.put(entry)
        for batch, events in entry.batches():
            with self._writing:
                self._read_hosts.commit(batch.host, batch.life, batch.end)
            for event in events:
                if isinstance(event, (AgentBegins, Gone)):
                    self._membership.take_in(event)
                    was_given_up = isinstance(event, Gone) and event.host == self._host not in self._membership.living
                    if (was_given_up and self._users()) or self._is_of_a_life_before(batch, event):
                        self._begin()  # the others went on without this host; it comes back

    def _is_of_a_life_before(self, batch: Batch, event: Event) -> bool:
        """Whether a life of this host that was given up has come back meanwhile. One that comes later ends this one."""
        if not isinstance(event, AgentBegins) or event.host != self._host or batch.life == self._page.life:
            return False
        if batch.life > self._page.life:
            self._give_up(FAILED, replaced(self._host))
        return True

    def _deliver(self) -> None:
        while True:
            next_one = self._entries.get()
            if isinstance(next_one, Entry):
                self._delivery.deliver(next_one)
            elif (log_position := self._delivery.log_position()) is not None:
                self._join_handler.tell(next_one, log_position)

    def _reduce(self) -> None:
        while True:
            sealed, generation = self._attempts.get()
            group = self._membership.group_of(generation)
            if group is None:
                continue
            try:
                event = self._reducer.reduce(group, sealed)
            except Abandoned:
                continue
            except RuntimeError as error:
                while not group.is_over:
                    self._membership.trouble(group, error)
                continue
            if event is not None:
                self._say(event)

    def _beat(self) -> None:
        while True:
            living, serials = self._membership.living, self._membership.serials()
            looked_at = watched(self._host, living, len(serials))
            silent = self._leases.silent({host: serials[host] for host in looked_at})
            self._leases.beat(self._delivery.entries)
            self._store_answered = time.monotonic()
            if self._host_log.ledger.started:
                for host in set(silent) & set(living):
                    self._let_go(host, f"has been silent for {lease_s(self._timeout_s):.0f} s")
            if self._host in living[:WATCHED_BY_ALL]:
                self._receive()
            self._cut(living)
            time.sleep(beat_s(self._timeout_s))

    def _watch_store(self) -> None:
        patience_s, looked = store_s(self._timeout_s), time.monotonic()
        while True:
            now = time.monotonic()
            if now - looked > patience_s / 2:  # it is this agent that stood still: the store may have answered
                self._store_answered = now
            elif now - self._store_answered > patience_s:
                self._give_up(STORE_LOST, store_lost(self._host, f"no answer for {patience_s:.1f} s"))
            looked = now
            time.sleep(beat_s(self._timeout_s))

    def _say(self, event: Event) -> None:
        self._inbox.put(event, time.monotonic_ns() + self._page.clock_ns)

    def _begin(self) -> None:
        """Says that this agent begins, or begins again: the agents form a new group."""
        known = max(self._serial, self._membership.serial(self._host))
        self._serial = max(known + 1, int(time.time() * 8) % (1 << 32))
        self._say(AgentBegins(self._host, self._serial))

    def _connect(self, generation: int, living: list[int]) -> tuple[Group, Transfers]:
        place = f"{self._prefix}/group/{generation}"
        store = SealedStore(self._store.clone(), self._page.key, place)
        group = Group(store, self._address, living, self._host, group_s(self._timeout_s))
        group.prove(self._page.key, place, lease_s(self._timeout_s))
        positions = {host: numbers[0] for host, numbers in group.exchange([self._delivery.brought]).items()}
        self._page.clock_ns = group.clock_ns(self._page.clock_ns)
        return group, Transfers(group, self._memory, self._snapshots, positions)

    def _receive(self) -> None:
        """Of a host that was started again, the life before is given up. The first of the others answers it."""
        living, serials = self._membership.living, self._membership.serials()
        for question in self._join_handler.questions(host for host in serials if host != self._host):
            if question.host in living:
                self._let_go(question.host, "was started again", serials[question.host])
            elif living and living[0] == self._host:
                self._join_handler.take(question)
                self._entries.put(question)

    def _let_go(self, host: int, why: str, serial: int | None = None) -> None:
        which = (host, self._membership.serial(host) if serial is None else serial)
        if which not in self._given_up:
            self._given_up.add(which)
            print(f"outpace: host {host} {why}; the others go on without it until it is back", file=sys.stderr)
            sys.stderr.flush()
            self._say(Gone(*which))

    def _cut(self, living: list[int]) -> None:
        mine = self._delivery.entries
        if living and living[0] == self._host:
            everybody = self._leases.had_by_all(list(range(self._read_hosts.count)), mine)
            needed = max(everybody, self._leases.had_by_all(living, mine) - _KEPT_ENTRIES) - 1
            self._log.cut(needed, beat_s(self._timeout_s) / 4)

    def _look_after_ranks(self) -> bool:
        """Reports dead ranks. True if no rank is left to work for."""
        members = self._host_log.ledger.members.by_rank
        is_anybody_there = False
        for rank in self._ranks:
            if self._life.lives(rank):
                is_anybody_there = True
                continue
            member = members.get(rank)
            if member is not None and member.alive and (rank, member.incarnation) not in self._reported_dead:
                self._reported_dead.add((rank, member.incarnation))
                self._say(Dead(rank, member.incarnation))
        return not is_anybody_there and self._is_dispensable()

    def _is_dispensable(self) -> bool:
        """Whether no other host needs anything of this one any more. Where training goes on, it says that it leaves."""
        ledger, me = self._host_log.ledger, self._host
        if not ledger.started or me not in ledger.hosts.living:
            return True
        committed = self._read_hosts.committed_of(me, self._page.life)
        if committed is not None and (self._inbox.read(committed, 1) or not self._entries.empty()):
            return False
        if ledger.ended:
            return self._has_everybody_ended()
        sealed = ledger.reducing
        given = [*ledger.on_time, *ledger.carried, *(sealed.contributions if sealed is not None else ())]
        if not any(c.rank in self._ranks for c in given):
            self._say(Gone(me, self._membership.serial(me)))
        return False

    def _has_everybody_ended(self) -> bool:
        """Whether all hosts have the end of the log, with what goes with it, or have had time to get it."""
        if self._ended is None:
            self._ended = time.monotonic()
            self._ends.set(str(self._host), b"ended")
        others = list(map(str, self._membership.living))
        if time.monotonic() - self._ended > lease_s(self._timeout_s):
            return True
        return self._ends.check(others) and bool(self._ends.multi_get(others))

    def _is_current(self, sealed: Round) -> bool:
        current = self._host_log.ledger.reducing
        return current is not None and tag(current) == tag(sealed)

    def _users(self) -> list[int]:
        return [rank for rank in self._ranks if self._life.lives(rank)]

    def _leave(self) -> None:
        """Because nobody needs this agent. Threads that wait for other hosts are left to themselves."""
        self._page.status = LEFT
        os._exit(0)

    def _give_up(self, status: int, why: str) -> None:
        self._page.give_up(status, why)
        Bell(self._memory.word).ring()
        os._exit(1)


def _chunks(given: list[tuple[str, int, int]]) -> list[Chunk]:
    return [Chunk(getattr(torch, dtype), offset, elements) for dtype, offset, elements in given]


def store_lost(host: int, why: str) -> str:
    return (
        f"the store at {address()}, which joins the hosts, is lost to host {host} ({why}). No round was committed "
        "without it; restart the job from its last checkpoint"
    )


def live(given: dict[str, Any]) -> None:
    """An agent's life, in a process of its own. What it is given is a `LaunchSpec`.

    Before it does anything else, an agent forks another one that waits for its death: so the host is without an agent
    for no longer than it takes to get a lock, also when its ranks are stopped.
    """
    make_room()
    be_quiet()
    torch.set_num_threads(max(1, min(4, cores() // 2)))
    spec = LaunchSpec(**given)
    layout, life = ArenaLayout(**spec.layout), Life(spec.fds[2])
    if not life.take(layout.world):
        return  # another one was quicker
    page, ranks = SharedPage(Arena(spec.fds[0], layout)), Hosts(Rules.from_dict(spec.rules)).ranks[spec.host]
    while os.fork() == 0:
        life.wait_for(layout.world)
        if page.status != RUNNING or not any(map(life.lives, ranks)):
            os._exit(0)
    has_joined = threading.Event()
    threading.Thread(target=_end_with, args=(ranks, life, has_joined), name="end with ranks", daemon=True).start()
    try:
        agent = Agent(spec)
    except DistNetworkError as error:
        page.give_up(STORE_LOST, store_lost(spec.host, str(error).splitlines()[0]))
        os._exit(1)
    has_joined.set()
    agent.run()


def _end_with(ranks: Sequence[int], life: Life, has_joined: threading.Event) -> None:
    """While an agent joins the store: that takes minutes where there is none any more, and it may work for nobody."""
    while not has_joined.wait(_REST_S):
        if not any(map(life.lives, ranks)):
            os._exit(0)
