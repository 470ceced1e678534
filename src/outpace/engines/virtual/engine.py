"""The virtual engine: one rank's rounds in simulated time.

Owns how time passes for a rank: computing, contributing, waiting, applying. `TimedEngine` has no tensors, and a rank
that missed rounds takes them all at once; `training.TrainingEngine` has real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from outpace.engines.base import Ticket, Work
from outpace.engines.replicas import REPLAY_AT_MOST
from outpace.engines.rounds import RoundEngine
from outpace.engines.virtual.clock import Waiters, sleep, wait_in
from outpace.engines.virtual.world import World
from outpace.errors import BelowQuorum
from outpace.protocol.events import Event
from outpace.protocol.ledger import Ledger


class Pace(NamedTuple):
    """How fast a simulated rank is."""

    compute_ns: Callable[[int], int]  #: of each of its steps, counted from 0
    apply_ns: int = 0  #: of one round


class VirtualEngine(RoundEngine):
    """One rank's way through simulated time. Its computing passes just before it contributes."""

    began_ns = 0  #: when it began to compute its current step
    ready_ns = 0  #: when that is done; it computes until then
    waited_ns = 0
    _waits_since_ns: int | None = None

    _world: World
    _pace: Pace
    _on_the_way_ns = 0  # of a contribution, where it needs no sleep of its own

    @property
    def ledger(self) -> Ledger:
        """The ledger that all simulated ranks share."""
        return self._world.ledger

    @property
    def waited_s(self) -> float:
        """Simulated seconds this rank has waited for others; a wait under way counts."""
        since = self._waits_since_ns
        return (self.waited_ns + (0 if since is None else self._world.clock.now_ns - since)) / 1e9

    async def begin(self, work: Work) -> Ticket:
        """Lets the time of computing pass, then contributes."""
        compute = self._pace.compute_ns(self._steps)
        self.began_ns = self._world.clock.now_ns
        self.ready_ns = self.began_ns + compute
        await sleep(compute + self._on_the_way_ns)
        return await super().begin(work)

    def _look(self) -> None:
        """There is one ledger: nothing is ever unread."""

    def _append(self, event: Event) -> str:
        return self._world.append(event)

    async def _until_complete(self, version: int, purpose: str) -> None:
        self._waits_since_ns = began = self._world.clock.now_ns
        while self.ledger.complete < version:
            await self._park(self._world.completion(version))
        self.waited_ns += self._world.clock.now_ns - began
        self._waits_since_ns = None

    async def _until(self, predicate: Callable[[], bool], purpose: str) -> None:
        self._waits_since_ns = began = self._world.clock.now_ns
        while not predicate():
            await self._park(self._world.news())
        self.waited_ns += self._world.clock.now_ns - began
        self._waits_since_ns = None

    async def _park(self, waiters: Waiters) -> None:
        """Waits in the list until the world wakes it."""
        if self.ledger.below_quorum:
            raise BelowQuorum(f"[rank {self.rank} - round {self.ledger.round}] {self.ledger.why_below_quorum()}")
        await wait_in(waiters)


class TimedEngine(VirtualEngine):
    """A rank without tensors: only who waits for whom, and for how long."""

    version = 0

    def __init__(self, world: World, rank: int, pace: Pace) -> None:
        super().__init__(rank, world.ledger.rules)
        self._world = world
        self._pace = pace
        self._on_the_way_ns = world.arrive_ns

    async def _share_beginning(self) -> None:
        """There are no weights to begin from."""

    async def _deposit(self, row: int, work: Work) -> None:
        """There is nothing to write."""

    async def _apply_until(self, version: int) -> None:
        missed = version - self.version
        if missed > 0:
            if self._pace.apply_ns:
                await sleep(self._pace.apply_ns * min(missed, REPLAY_AT_MOST + 1))
            self.version = version
