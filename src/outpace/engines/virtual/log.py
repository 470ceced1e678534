"""One simulated rank's clock and log: how time passes while it computes, says something or waits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from outpace.engines.log import Wait
from outpace.engines.virtual.clock import sleep, wait_in
from outpace.engines.virtual.world import World
from outpace.errors import BelowQuorum
from outpace.protocol.events import Event, Join, Outcome, OutcomeKind, Read, Tell
from outpace.protocol.ledger import Ledger

UNHEARD = (Read, Tell)  #: what a rank says without looking at what became of it


class Speed(NamedTuple):
    compute_ns: Callable[[int], int]  #: of each of its steps, counted from 0
    apply_ns: int = 0  #: of one round


class VirtualLog:
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
