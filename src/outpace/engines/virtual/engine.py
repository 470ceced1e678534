"""The virtual engine: one rank's rounds in simulated time.

Owns how time passes for a rank: computing, contributing, waiting, applying. `TimedEngine` has no tensors, and a rank
that missed rounds takes them all at once; `training.TrainingEngine` has real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from outpace.engines.replicas import REPLAY_AT_MOST
from outpace.engines.sharing import SharingEngine, Term
from outpace.engines.virtual.clock import Waiters, sleep, wait_in
from outpace.engines.virtual.world import World
from outpace.errors import BelowQuorum
from outpace.interface import Notes, Work
from outpace.protocol.events import Event, Join, Read, Tell
from outpace.protocol.ledger import Ledger
from outpace.protocol.outcome import Outcome, OutcomeKind
from outpace.protocol.shelves import Publication

UNHEARD = (Read, Tell)  #: what a rank says without looking at what became of it


class Pace(NamedTuple):
    """How fast a simulated rank is."""

    compute_ns: Callable[[int], int]  #: of each of its steps, counted from 0
    apply_ns: int = 0  #: of one round


class VirtualEngine(SharingEngine):
    """One rank's way through simulated time."""

    began_ns = 0  #: when it began to compute its current step
    ready_ns = 0  #: when that is done; it computes until then
    waited_ns = 0
    _waits_since_ns: int | None = None

    _world: World
    _pace: Pace
    _computed = 0  # whole steps
    _part = 0  # parts of the step under way
    _is_committed = False  # what it says next is in the store already

    @property
    def ledger(self) -> Ledger:
        """The ledger that all simulated ranks share."""
        return self._world.ledger

    @property
    def waited_s(self) -> float:
        """Simulated seconds this rank has waited for others; a wait under way counts."""
        since = self._waits_since_ns
        return (self.waited_ns + (0 if since is None else self._world.clock.now_ns - since)) / 1e9

    async def compute(self, parts: int = 1) -> None:
        """Lets the time of computing a step pass, or of one of so many parts of it."""
        compute = self._pace.compute_ns(self._computed) // parts
        self._part += 1
        if self._part >= parts:
            self._part = 0
            self._computed += 1
        self.began_ns = self._world.clock.now_ns
        self.ready_ns = self.began_ns + compute
        await sleep(compute)

    def skip_rest(self) -> None:
        """What is left of the step under way will not be computed."""
        if self._part:
            self._part = 0
            self._computed += 1

    def now_s(self) -> float:
        """Simulated seconds."""
        return self._world.clock.now_ns / 1e9

    async def publish(self, iteration: int, readers: Collection[int] = (), notes: Notes = ()) -> bool:
        """Published weights are as long on their way as a contribution. Agents send one row of a rank at a time."""
        agents = self._world.agents
        if agents is not None:
            await self._until_row_is_read()
            await sleep(agents.rows_there_in_ns([self.rank]))
            agents.send(self.rank, readers)
        await sleep(self._world.arrive_ns)
        await self._until_committed()
        return await super().publish(iteration, readers, notes)

    async def _travel(self, peers: Collection[int], together: bool) -> None:
        await sleep(self._world.travel_ns(self.rank, peers, together))

    async def _travel_of_all(self, ranks: Sequence[int]) -> None:
        await sleep(self._world.travel_of_all_ns(ranks))

    def _notes_of(self, row: int) -> Notes:
        return self._world.notes.get(row, ())

    async def _until_each(self, ranks: Iterable[int], holds: Callable[[int], bool], purpose: str) -> None:
        self._waits_since_ns = began = self._world.clock.now_ns
        for rank in ranks:
            while not holds(rank):
                await self._park(self._world.changes_of(rank))
        self.waited_ns += self._world.clock.now_ns - began
        self._waits_since_ns = None

    def _look(self) -> None:
        """There is one ledger: nothing is ever unread."""

    async def _until_committed(self) -> None:
        """Waits until what it says next is in the log: in the store's, if there is one."""
        if self._world.agents is not None:
            await wait_in(self._world.agents.commit(self.rank))
            self._is_committed = True

    def _append(self, event: Event) -> Outcome:
        """What the store has not taken in yet is charged to it. Joining is free: a run begins when all have joined."""
        agents, is_committed, self._is_committed = self._world.agents, self._is_committed, False
        if agents is None or is_committed or isinstance(event, Join):
            return self._world.append(event)
        if isinstance(event, UNHEARD):
            agents.post(self.rank, partial(self._world.append, event))
            return Outcome(OutcomeKind.UNREAD, "not in the log yet")
        agents.post(self.rank, _nothing)
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


def _nothing() -> None:
    """What follows from something that has taken effect already."""


class TimedEngine(VirtualEngine):
    """A rank without tensors: only who waits for whom, and for how long."""

    version = 0

    def __init__(self, world: World, rank: int, pace: Pace) -> None:
        super().__init__(rank, world.ledger.rules)
        self._world = world
        self._pace = pace

    async def _share_beginning(self) -> None:
        """There are no weights to begin from."""

    async def _deposit(self, row: int, work: Work, onto: int | None) -> None:
        if self._world.arrive_ns:
            await sleep(self._world.arrive_ns)
        await self._until_committed()

    async def local_step(self, work: Work) -> None:
        """Only its time passes."""
        if self._pace.apply_ns:
            await sleep(self._pace.apply_ns)
        self.steps += 1

    async def _write(self, row: int, notes: Notes) -> None:
        self._world.notes[row] = notes

    def _sum(self, terms: Sequence[Term], own: float) -> None:
        """There is nothing to add up."""

    def _places(self, found: Iterable[Publication]) -> list[Publication]:
        """Nobody reads them: with two it is clear whether there is anybody else, however large the world is."""
        return list(islice(found, 2))

    def _mean(self, places: Sequence[Publication], with_own: bool) -> None:
        """There is nothing to average."""

    def _write_sum(self, row: int, summed: object) -> None:
        """There is nothing to write."""

    def _take(self, summed: object, notes: Notes) -> None:
        """There is nothing to take over."""

    def _own_notes(self) -> Notes:
        return ()

    def _keep(self) -> None:
        """There is nothing to keep."""

    def _put_on_top(self, weights: object) -> None:
        """There is nothing to put."""

    async def _apply_until(self, version: int) -> None:
        missed = version - self.version
        if missed > 0:
            if self._pace.apply_ns:
                await sleep(self._pace.apply_ns * min(missed, REPLAY_AT_MOST + 1))
            self.version = version
