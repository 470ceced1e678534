"""Who waits for whom in a scenario: one simulated run, its figures, and how strategies compare by them.

Timing alone and training differ only in what a step computes and how a rank leaves. The strategy is the very object
that trains for real, and every decision is the ledger's.
"""

from __future__ import annotations

import gc
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heapreplace

from outpace.engines.engine import Engine
from outpace.engines.virtual.agents import Load
from outpace.engines.virtual.clock import Clock, Task
from outpace.engines.virtual.memory import timed_engine
from outpace.engines.virtual.world import VirtualLog, World
from outpace.errors import OutpaceError
from outpace.interface import Work
from outpace.launching.signals import defer_sigint
from outpace.observe.figures import late_share
from outpace.protocol.events import Event, Outcome
from outpace.protocol.ledger import Ledger
from outpace.protocol.members import Tally
from outpace.protocol.rules import Rules
from outpace.simulation.scenario import Scenario, WorkLeft
from outpace.strategies import Strategy, strategy
from outpace.strategies.base import After

Progress = Callable[[int], None]  #: called with the number of steps made
Watcher = Callable[[Event, Outcome], None]  #: called with each event and its outcome

BASELINE = "allreduce"  #: everybody waits for everybody, as DDP does
NOTHING = Work()


@dataclass(frozen=True)
class Timing:
    """The result of a simulated run: who waited for whom."""

    strategy: str
    seconds: float  #: until the last step ended; of shared data, until it was begun
    steps: float  #: made in that time; one under way counts by its part
    rounds: int
    waited_s: tuple[float, ...]  #: in that time, by each rank
    tallies: tuple[Tally, ...]  #: what became of each rank's contributions
    digest: str  #: of the log
    load: Load | None = field(default=None, kw_only=True)  #: of store and links in that time, where there is a store

    @property
    def store_ops_per_round(self) -> float:
        """What the store was asked for a round, or for a step of every rank where there are no rounds."""
        if self.load is None:
            return 0.0
        return self.load.ops / (self.load.rounds or self.steps / len(self.tallies) or float("nan"))

    @property
    def applied_share(self) -> float:
        """Share of the contributions that were applied; the others were dropped."""
        applied, dropped = self._applied(), sum(t.dropped for t in self.tallies)
        return applied / (applied + dropped) if applied + dropped else 1.0

    @property
    def throughput(self) -> float:
        """Steps per second whose contribution was applied."""
        return self.steps * self.applied_share / self.seconds if self.seconds else float("inf")

    @property
    def waited_share(self) -> float:
        """Share of their time the ranks waited, in the mean."""
        return sum(self.waited_s) / len(self.waited_s) / self.seconds if self.seconds else 0.0

    @property
    def staleness(self) -> Counter[int]:
        """Rounds late -> how many contributions."""
        return sum((t.staleness for t in self.tallies), Counter[int]())

    @property
    def late_share(self) -> float:
        return late_share(self.staleness)

    def staleness_of(self, share: float) -> int:
        """The least staleness that this share of the applied contributions does not exceed."""
        counts = self.staleness
        left = share * counts.total()
        for staleness in sorted(counts):
            left -= counts[staleness]
            if left <= 0:
                return staleness
        return 0

    def share(self, rank: int) -> float:
        tally = self.tallies[rank]
        return (tally.on_time + tally.carried) / max(1, self._applied())

    def _applied(self) -> int:
        return sum(t.on_time + t.carried for t in self.tallies)


class Run(ABC):
    report_every = 1024  #: steps

    def __init__(
        self, chosen: Strategy, scenario: Scenario, world: World, progress: Progress | None, watch: Watcher | None
    ) -> None:
        self._strategy, self._scenario, self._world, self._progress = chosen, scenario, world, progress
        self._logs = [VirtualLog(world, rank, scenario.pace(rank)) for rank in range(scenario.ranks)]
        self._engines = [self._engine(log) for log in self._logs]
        self._pool = WorkLeft(scenario, scenario.microbatches if chosen.polls else 1)
        self._done = 0  # micro-batches that were taken in
        self._end_ns = 0  # when the figures were taken
        self._made: float = 0  # steps until then
        self._waited_s = [0.0] * scenario.ranks  # until then
        self._load: Load | None = None  # until then
        if watch is not None:
            world.on_event.append(watch)

    @abstractmethod
    def _engine(self, log: VirtualLog) -> Engine:
        pass

    @abstractmethod
    def _compute(self, engine: Engine) -> Work:
        """One micro-batch of this rank, at its beginning: the time it takes passes afterwards."""

    def _after_step(self, engine: Engine) -> None:
        """What a rank's own loop does after its `step()`, which takes no time."""
        return

    @abstractmethod
    async def _leave(self, engine: Engine) -> None:
        pass

    def to_its_end(self) -> None:
        tasks: list[Task] = []
        gc.freeze()  # collections would go through all of torch again and again: a third of a timing-only run
        try:
            with defer_sigint():  # a life that is in no task yet could not be ended
                tasks += [Task(self._world.clock, self._life(engine)).start() for engine in self._engines]
            self._world.clock.run()
            self._check_ended(tasks)
        finally:
            for task in tasks:  # after Ctrl-C, Python would complain of coroutines that were not even begun
                task.kill()
            gc.unfreeze()

    def timing(self, choice: str | Strategy) -> Timing:
        ledger = self._world.ledger
        tallies = tuple(ledger.members.tallies[rank] for rank in range(self._scenario.ranks))
        return Timing(
            strategy=choice if isinstance(choice, str) else repr(choice),
            seconds=self._end_ns / 1e9,
            steps=self._made,
            rounds=ledger.round,
            waited_s=tuple(self._waited_s),
            tallies=tallies,
            digest=self._world.digest,
            load=self._load,
        )

    def _check_ended(self, tasks: list[Task]) -> None:
        for rank, task in enumerate(tasks):
            if not task.is_over:
                where = f"in round {self._world.ledger.round}"
                raise OutpaceError(f"rank {rank} waits forever {where}: please report this")

    async def _life(self, engine: Engine) -> None:
        """One rank: takes work, contributes the result, and leaves when no work is left."""
        await engine.join()
        while self._take(engine):
            engine.begin_computing()
            if self._pool.parts == 1:
                work = self._compute(engine)
                await self._logs[engine.rank].compute()
                await self._strategy.step(engine, work)
                self._count_part()
            else:
                await self._round_of_parts(engine)
            self._after_step(engine)
        if self._scenario.is_split:
            self._end_ns, self._made = self._world.clock.now_ns, self._done / self._pool.parts
            self._waited_s[engine.rank] = engine.waited_s
            self._load = self._world.load()
        await self._leave(engine)

    def _take(self, engine: Engine) -> bool:
        if not self._pool.take(engine.rank):
            return False
        if not self._pool.left and not self._scenario.is_split:
            self._take_figures()
        return True

    async def _round_of_parts(self, engine: Engine) -> None:
        """A step in micro-batches, which the strategy may end early."""
        rank, parts, is_over = engine.rank, self._pool.parts, False
        for done in range(1, parts + 1):
            work = self._compute(engine)
            await self._logs[rank].compute(parts)
            work = self._of_parts(work, done, engine.rules)
            if done == parts or not self._pool.is_left_for(rank):
                break
            after = await self._strategy.microbatch(engine, work)
            is_over = after is not After.GO_ON
            if after is After.AGAIN:
                self._pool.give_back(rank)
            elif engine.rules.cumulative:
                self._count_part()
            if is_over:
                break
            self._take(engine)
        ticket = await self._strategy.step(engine, work)
        if engine.rules.cumulative:
            if not is_over and ticket.taken:
                self._count_part()
            elif not is_over:
                self._pool.give_back(rank)
        elif ticket.taken:
            for _ in range(done):
                self._count_part()
        if is_over and self._strategy.drops_rest:
            self._logs[rank].skip_rest()
            for _ in range(parts - done):
                self._take(engine)

    def _of_parts(self, work: Work, done: int, rules: Rules) -> Work:
        """What is contributed after so many micro-batches."""
        parts = float(self._pool.parts)
        if rules.cumulative:
            return work._replace(samples=1.0, planned=parts)
        scale = 1.0 if rules.of_sums else 1 / done
        return work._replace(samples=float(done), planned=parts, scale=scale, share=done / parts)

    def _count_part(self) -> None:
        self._done += 1
        if self._progress is not None and self._done % (self.report_every * self._pool.parts) == 0:
            self._progress(self._done // self._pool.parts)

    def _take_figures(self) -> None:
        """Of a pool that is empty now: every rank is in the middle of something."""
        self._end_ns = self._world.clock.now_ns
        self._made = (self._done + sum(map(self._part, self._logs))) / self._pool.parts
        self._waited_s = [engine.waited_s for engine in self._engines]
        self._load = self._world.load()

    def _part(self, log: VirtualLog) -> float:
        """How far this rank is in the step it computes."""
        left, whole = log.ready_ns - self._world.clock.now_ns, log.ready_ns - log.began_ns
        return 1 - left / whole if left > 0 else 0.0


def simulate_timing(
    choice: str | Strategy, scenario: Scenario, progress: Progress | None = None, watch: Watcher | None = None
) -> Timing:
    """Runs a strategy through a scenario in simulated time. Blocks; the same arguments give the same log.

    >>> run = simulate_timing("allreduce", Scenario(ranks=4, steps=10, imbalance="slow:factor=2", network="zero"))
    >>> run.seconds, run.throughput  # ten steps of 200 ms by four ranks
    (2.0, 20.0)
    """
    chosen = strategy(choice)
    world = World(Clock(), Ledger(chosen.rules(scenario.ranks)), scenario.links, scenario.payload_bytes)
    run = _TimedRun(chosen, scenario, world, progress, watch)
    run.to_its_end()
    return run.timing(choice)


class _TimedRun(Run):
    def _engine(self, log: VirtualLog) -> Engine:
        return timed_engine(log)

    def _compute(self, engine: Engine) -> Work:
        return NOTHING

    async def _leave(self, engine: Engine) -> None:
        engine.leave()


# -- what is known of a scenario without any strategy -----------------------------------------------------------------


def ideal_throughput(scenario: Scenario) -> float:
    """Steps per second if nobody ever waited and communication cost nothing. Split data last as long as the slowest."""
    paces = [scenario.compute_ns(rank) for rank in range(scenario.ranks)]
    if scenario.is_split:
        slowest = max(sum(map(pace, range(scenario.steps))) for pace in paces)
        return scenario.ranks * scenario.steps / (slowest / 1e9) if slowest else float("inf")
    ends = [(pace(0), rank, 0) for rank, pace in enumerate(paces)]
    heapify(ends)
    now = 0
    for _ in range(scenario.ranks * (scenario.steps - 1)):
        now, rank, step = ends[0]
        heapreplace(ends, (now + paces[rank](step + 1), rank, step + 1))
    under_way = sum(1 - (end - now) / paces[rank](step) for end, rank, step in ends if end > now)
    return (scenario.ranks * (scenario.steps - 1) + under_way) / (now / 1e9) if now else float("inf")


def mean_compute_s(scenario: Scenario) -> list[float]:
    paces = [scenario.compute_ns(rank) for rank in range(scenario.ranks)]
    totals = [0] * scenario.ranks
    for step in range(scenario.steps):  # step by step, because a model may draw for all ranks at once
        for rank, pace in enumerate(paces):
            totals[rank] += pace(step)
    return [total / scenario.steps / 1e9 for total in totals]


def full_round_s(scenario: Scenario) -> float:
    """What a round of all ranks costs, from the last one's gradients being ready until everybody has the result.

    With a store this is a lower bound, without contention.
    """
    links, world, payload = scenario.links, scenario.ranks, scenario.payload_bytes
    known = links.arrive_ns(world, payload) + links.reduce_ns(world, range(world), payload)
    return known / 1e9 + links.end_s(world)


class Standing:
    """Runs of one scenario. Figures of a run that took no time are NaN or infinite."""

    def __init__(self, scenario: Scenario, runs: Sequence[Timing]) -> None:
        self.scenario = scenario
        self.runs = runs

    def speedup(self, run: Timing) -> float:
        """How many times as much is applied per second as under the baseline. NaN if that did not run."""
        base = next((r.throughput for r in self.runs if r.strategy == BASELINE), math.nan)
        return run.throughput / base

    def share_of_ideal(self, run: Timing) -> float:
        return run.throughput / self.ideal

    def fair_part(self, run: Timing) -> float:
        """The slowest rank's contributions, as a part of its even share: 1 if it counts like the others."""
        return run.share(self.slowest) * self.scenario.ranks

    def measure(self) -> None:
        """Computes what needs no run now: among many ranks it takes seconds, which hurt least before the first run."""
        _ = self.ideal, self.slowest

    @cached_property
    def ideal(self) -> float:
        return ideal_throughput(self.scenario)

    @cached_property
    def compute_s(self) -> list[float]:
        return mean_compute_s(self.scenario)

    @cached_property
    def slowest(self) -> int:
        return max(range(self.scenario.ranks), key=self.compute_s.__getitem__)
