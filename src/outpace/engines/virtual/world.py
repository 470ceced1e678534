"""The simulated world: one log, one ledger and the time, for all ranks of a job; and the log as each rank sees it.

Owns what no single rank does: a sealed round is complete when its reduction would be, a grace ends when it is over, a
death is noticed a while after it happened, and whoever waits for any of it is woken. Every decision is the ledger's.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple, Protocol, get_args, get_type_hints

from outpace.engines.log import Wait
from outpace.engines.virtual.agents import Agents, Load
from outpace.engines.virtual.clock import Clock, Waiters, sleep, wait_in
from outpace.engines.virtual.network import Network
from outpace.errors import BelowQuorum
from outpace.interface import Notes
from outpace.mixing.schedules import Placement, host_group
from outpace.protocol.events import Dead, Done, Event, Join, Outcome, OutcomeKind, Read, Seal, Tell
from outpace.protocol.ledger import Ledger
from outpace.protocol.round import Round
from outpace.protocol.rules import Publishing

PROBE_NS = 100_000_000  #: how long after it a death is noticed, as on a real machine

_LETTERS = {int: "q", float: "d", bool: "?"}
_RECORDS = {  # all events of a type as what is hashed of them: the type's number and all its fields
    kind: partial(struct.Struct("<q" + "".join(map(_LETTERS.__getitem__, get_type_hints(kind).values()))).pack, number)
    for number, kind in enumerate(get_args(Event))
}
_HASHED_AT_ONCE = 65536


class Reducer(Protocol):
    """Makes the result of a sealed round."""

    def reduce(self, sealed: Round) -> Event:
        """The event that is due when the reduction is over: done, or a contribution refused."""


class World:
    def __init__(
        self, clock: Clock, ledger: Ledger, network: Network, payload_bytes: int, reducer: Reducer | None = None
    ) -> None:
        self.clock, self.ledger, self.network, self.payload_bytes = clock, ledger, network, payload_bytes
        self.position = 0  #: how many events the log has
        self.on_event: list[Callable[[Event, Outcome], None]] = []  #: told of each event and what it did
        world = ledger.rules.world
        self._reducer = reducer
        self._hash = hashlib.blake2b(digest_size=16)
        self._unhashed = bytearray()
        has_store = network.has_store(world)
        self.agents = Agents(clock, network, world, payload_bytes) if has_store else None  #: of hosts with a store
        #: from a rank's gradients being ready until its arrival is in the log, or with its host's agent
        self.arrive_ns = network.write_ns(payload_bytes) if has_store else network.arrive_ns(world, payload_bytes)
        self._notice_ns = round(network.notice_s(world) * 1e9)
        self.placement = _placement(network, world)  #: of ranks on several hosts
        publishing = ledger.rules.publishes
        #: whose means of groups the agents make
        self.averaging = publishing if publishing is not None and publishing.groups and has_store else None
        self._frozen = 0
        self._reducing: tuple[int, int] = (-1, 0)  # the attempt whose end is planned
        self._graced: tuple[int, int] = (-1, 0)  # round and deadline whose seal is planned
        self._complete = 0
        self._by_version: dict[int, Waiters] = {}  # woken when so many rounds are complete
        self._for_news: Waiters = []
        self._seen: tuple[object, ...] = ()
        self.notes: dict[int, Notes] = {}  #: by published row
        self._by_rank: dict[int, Waiters] = {}  # woken when what a rank publishes, reads or is changes
        self._travels: dict[tuple[object, ...], int] = {}
        self._travels_of_all: dict[Sequence[int], int] = {}
        ledger.published.collects = True

    @property
    def digest(self) -> str:
        """A hash of the log so far, times included: equal for equal runs, on every machine."""
        self._hash_all()
        return self._hash.hexdigest()

    def append(self, event: Event) -> Outcome:
        """Adds an event to the log, and lets everything follow from it that follows at once."""
        kind = type(event)
        event = kind(*event[:-1], self.clock.now_ns)  # type: ignore[call-arg]
        self._unhashed += _RECORDS[kind](*event)
        if len(self._unhashed) > _HASHED_AT_ONCE:
            self._hash_all()
        self.position += 1
        outcome = self.ledger.apply(event)
        for told in self.on_event:
            told(event, outcome)
        if kind is Join and self.ledger.started:
            self._wake_writers()
        self._react()
        return outcome

    def _hash_all(self) -> None:
        self._hash.update(self._unhashed)
        self._unhashed.clear()

    def completion(self, version: int) -> Waiters:
        """Where to wait until so many rounds are complete."""
        return self._by_version.setdefault(version, [])

    def news(self) -> Waiters:
        """Where to wait until something happened that is not just one more arrival."""
        self._seen = self._news()
        return self._for_news

    def changes_of(self, rank: int) -> Waiters:
        """Where to wait until something happens to what a rank has published."""
        return self._by_rank.setdefault(rank, [])

    def load(self) -> Load | None:
        return None if self.agents is None else self.agents.load()

    def travel_ns(self, rank: int, peers: Collection[int], together: bool) -> int:
        """How long it takes a rank to get these ranks' published weights, or the sum that all of them make."""
        key = (rank, together, *sorted(peers))
        if key not in self._travels:
            self._travels[key] = self.network.gather_ns(rank, peers, self.payload_bytes, together)
        return self._travels[key] + self._under_way_ns(peers)

    def travel_of_all_ns(self, ranks: Sequence[int]) -> int:
        """How long it takes each of these ranks to get the sum that all of them make, whoever of them is there."""
        if ranks not in self._travels_of_all:
            cost = self.network.gather_ns(ranks[0], ranks[1:], self.payload_bytes, together=True)
            self._travels_of_all[ranks] = cost
        return self._travels_of_all[ranks] + self._under_way_ns(ranks)

    def died(self, rank: int, incarnation: int) -> None:
        """A rank's incarnation has ended without a word. The others notice after a while."""
        self.clock.after(PROBE_NS, partial(self._bury, Dead(rank, incarnation)))

    def _under_way_ns(self, ranks: Collection[int]) -> int:
        return 0 if self.agents is None else self.agents.rows_there_in_ns(ranks)

    def _react(self) -> None:
        ledger = self.ledger
        sealed = ledger.reducing
        if sealed is not None:
            if self._reducing != (sealed.number, sealed.attempt):
                self._plan_end(sealed)
        elif ledger.deadline_ns is not None:
            self._plan_seal()
        if self.averaging is not None and self._frozen != ledger.published.open:
            self._average_hosts(self.averaging)
        if ledger.published.changed:
            self._wake_readers(ledger.published.changed)
        complete = ledger.complete
        if complete != self._complete:
            self._wake_until(complete)
        if self._for_news and self._news() != self._seen:
            self.clock.wake(self._for_news, self._notice())

    def _average_hosts(self, publishing: Publishing) -> None:
        """An iteration was frozen: the hosts of each group make their mean."""
        self._frozen = self.ledger.published.open
        number, placement = self._frozen - 1, self.placement
        assert placement is not None
        assert self.agents is not None
        schedule = (number, placement, publishing.group_size, publishing.all_every)
        for hosts in sorted({host_group(host, *schedule) for host in range(len(placement.ranks))}):
            self.agents.average(hosts, max(map(len, placement.ranks)))

    def _plan_end(self, sealed: Round) -> None:
        self._reducing = (sealed.number, sealed.attempt)
        ranks = (c.rank for c in sealed.contributions)
        cost = self.network.reduce_ns(self.ledger.rules.world, ranks, self.payload_bytes)
        end = partial(self._end, self._reducing)
        if self.agents is None:
            self.clock.after(cost, end)
        else:  # agents begin when they have read the seal, and each says when it has the result
            self.clock.after(self._notice() + cost, partial(self.agents.post_of_all, end))

    def _end(self, attempt: tuple[int, int]) -> None:
        sealed = self.ledger.reducing
        if sealed is None or (sealed.number, sealed.attempt) != attempt:
            return
        done = Done(0, *attempt, sealed.slot)
        self.append(done if self._reducer is None else self._reducer.reduce(sealed))

    def _plan_seal(self) -> None:
        deadline = self.ledger.deadline_ns
        if deadline is not None and self._graced != (self.ledger.sealable, deadline):
            self._graced = (self.ledger.sealable, deadline)
            seal = partial(self.append, Seal(self.ledger.sealable))
            self.clock.at(deadline, seal if self.agents is None else partial(self.agents.post, 0, seal))

    def _wake_readers(self, changed: list[int]) -> None:
        for rank in changed:
            if waiters := self._by_rank.get(rank):
                self.clock.wake(waiters, self._notice())
        changed.clear()

    def _wake_writers(self) -> None:
        """Whoever waits, in `finish` for one, may have to write a snapshot for the one who joins."""
        for waiters in (*self._by_version.values(), self._for_news):
            self.clock.wake(waiters, self._notice())

    def _bury(self, death: Event) -> None:
        self.append(death)
        if self.ledger.below_quorum:  # no round will come any more, and whoever waits must learn it
            for waiters in (*self._by_version.values(), *self._by_rank.values(), self._for_news):
                self.clock.wake(waiters, self._notice())

    def _wake_until(self, complete: int) -> None:
        """A resume may have left numbers out, so that all below are woken, not only the next."""
        if complete - self._complete == 1:
            due = [complete] if complete in self._by_version else []
        else:
            due = sorted(version for version in self._by_version if version <= complete)
        self._complete = complete
        for version in due:
            self.clock.wake(self._by_version.pop(version), self._notice())

    def _notice(self) -> int:
        """Until all hosts know what happened last."""
        return self._notice_ns if self.agents is None else self.agents.notice_ns()

    def _news(self) -> tuple[object, ...]:
        """What those who wait for something else than a round care about."""
        ledger = self.ledger
        latest, members = ledger.snapshots.latest, len(ledger.open.unfinished)
        drawn = ledger.pool.changes
        return ledger.started, ledger.complete, ledger.sync.generation, latest, ledger.ended, members, drawn


def _placement(network: Network, world: int) -> Placement | None:
    several = network.hosts(world) > 1
    return Placement([network.host_of(rank) for rank in range(world)]) if several else None


UNHEARD = (Read, Tell)  #: what a rank says without looking at what became of it


class Speed(NamedTuple):
    compute_ns: Callable[[int], int]  #: of each of its steps, counted from 0
    apply_ns: int = 0  #: of one round


class VirtualLog:
    """One simulated rank's clock and log: how time passes while it computes, says something or waits."""

    def __init__(self, world: World, rank: int, speed: Speed) -> None:
        self.world, self.rank, self.speed = world, rank, speed
        self.ledger: Ledger = world.ledger  #: all simulated ranks share it, so that nothing is ever unread
        self.incarnation = 0
        self.began_ns = 0  #: when it began to compute its current step
        self.ready_ns = 0  #: when that is done; it computes until then
        self.waited_ns = 0
        self._waits_since_ns: int | None = None
        self._computed = 0  # whole steps
        self._part = 0  # parts of the step under way
        self._is_committed = False  # what it says next is in the store already

    @property
    def position(self) -> int:
        return self.world.position

    @property
    def waited_s(self) -> float:
        """Simulated seconds this rank has waited for others; a wait under way counts."""
        since = self._waits_since_ns
        return (self.waited_ns + (0 if since is None else self.world.clock.now_ns - since)) / 1e9

    def now_s(self) -> float:
        return self.world.clock.now_ns / 1e9

    async def compute(self, parts: int = 1) -> None:
        """Lets the time of computing a step pass, or of one of so many parts of it."""
        compute = self.speed.compute_ns(self._computed) // parts
        self._part += 1
        if self._part >= parts:
            self._part = 0
            self._computed += 1
        self.began_ns = self.world.clock.now_ns
        self.ready_ns = self.began_ns + compute
        await sleep(compute)

    def skip_rest(self) -> None:
        """What is left of the step under way will not be computed."""
        if self._part:
            self._part = 0
            self._computed += 1

    def look(self) -> None:
        """There is one ledger: nothing is ever unread."""

    async def until_committed(self) -> None:
        """Waits until what it says next is in the log: in the store's, if there is one."""
        if self.world.agents is not None:
            await wait_in(self.world.agents.commit(self.rank))
            self._is_committed = True

    def append(self, event: Event) -> Outcome:
        """What the store has not taken in yet is charged to it. Joining is free: a run begins when all have joined."""
        agents, is_committed, self._is_committed = self.world.agents, self._is_committed, False
        if agents is None or is_committed or isinstance(event, Join):
            return self.world.append(event)
        if isinstance(event, UNHEARD):
            self.say(event)
            return Outcome(OutcomeKind.UNREAD, "not in the log yet")
        agents.post(self.rank, _nothing)
        return self.world.append(event)

    def say(self, event: Event) -> None:
        agents = self.world.agents
        if agents is None:
            self.world.append(event)
        else:
            agents.post(self.rank, partial(self.world.append, event))

    def report_deaths(self) -> bool:
        """The world tells, after a while."""
        return False

    def is_seal_due(self) -> bool:
        """The world seals when a grace is over."""
        return False

    def is_long_since(self, position: int) -> bool:
        return False

    def cut(self, position: int, buffer: int) -> None:
        """The log is a list that nobody cuts."""

    def begin_wait(self, purpose: str, version: int | None, rank: int | None) -> Wait:
        self._waits_since_ns = now = self.world.clock.now_ns
        return Wait(purpose, now, now, version, rank)

    def end_wait(self, wait: Wait) -> None:
        now = self.world.clock.now_ns
        self.waited_ns += now - int(wait.counted_s)
        wait.counted_s = now
        self._waits_since_ns = None

    def check(self) -> None:
        if self.ledger.below_quorum:
            raise BelowQuorum(f"[rank {self.rank} - round {self.ledger.round}] {self.ledger.why_below_quorum()}")

    async def rest(self, wait: Wait, at_most_s: float | None) -> None:
        world = self.world
        if wait.version is not None:
            waiters = world.completion(wait.version)
        else:
            waiters = world.news() if wait.rank is None else world.changes_of(wait.rank)
        if at_most_s is not None:
            world.clock.after(int(at_most_s * 1e9) + 1, lambda: world.clock.wake(waiters))
        await wait_in(waiters)


def _nothing() -> None:
    """What follows from something that has taken effect already."""
