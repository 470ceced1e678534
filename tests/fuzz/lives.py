"""One incarnation of a rank: it joins, computes and contributes, and finishes, unless something ends it.

Owns the coroutine, and the engine and replica that say what they do. They change nothing about it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from outpace.engines.draws import Source
from outpace.engines.engine import Engine
from outpace.engines.replay import Replay
from outpace.engines.virtual.clock import Task
from outpace.engines.virtual.memory import SharedTensors, TensorMemory
from outpace.engines.virtual.world import VirtualLog
from outpace.errors import BelowQuorum
from outpace.interface import Result, Work
from outpace.protocol.round import Round
from outpace.replica.replica import OptimizerReplica
from tests.fuzz.models import enlarge, fingerprint, poison, replica_parts

if TYPE_CHECKING:
    from tests.fuzz.plan import PoolPlan
    from tests.fuzz.run import Run

RUNNING, FINISHED, KILLED, BELOW_QUORUM = "running", "finished", "killed", "below quorum"
AT_THE_END = -1  #: the meeting of all in `finish`, beside the numbered synchronisations
DIGEST = 7  #: of what makes the order of an epoch

Item = tuple[int, int]  #: of the pool: epoch and place


class Life:
    """A process that is one rank, as the fuzz sees it."""

    def __init__(self, run: Run, rank: int, number: int) -> None:
        self.rank = rank
        self.number = number  #: how many lives of this rank there were before
        self.fate = RUNNING
        self.stopped_until_ns = 0  #: when it last went on after a pause
        self.fingerprint = ""  #: of its replica, at its version
        self.is_patient = run.plan.seed % 2 == 0  #: waits for frozen weights that are as new as the others
        self._run = run
        plan = run.plan
        inner, self._model = replica_parts(plan.model, seed=1000 * plan.seed + 10 * rank + number)
        self._rate = inner.param_groups[0]["lr"] * (1 + 0.1 * rank)
        self.replica = WatchedReplica(self, inner, self._model)
        self.log = VirtualLog(run.world, rank, plan.scenario.pace(rank))
        self.engine = run.system.engine(self, run.tensors, run.system.replay)
        self.task = Task(run.clock, self._live())

    def __str__(self) -> str:
        return f"rank {self.rank} (incarnation {self.engine.incarnation})"

    @property
    def is_living(self) -> bool:
        """Whether its process is still there."""
        return not self.task.is_over

    def tell(self, what: str, *details: object) -> None:
        """Lets everybody who watches know."""
        self._run.watch.tell(what, self, *details)

    def kill(self) -> None:
        """Ends it where it stands."""
        self.fate = KILLED
        self.task.kill()
        self._gone()

    async def _live(self) -> None:
        run = self._run
        if not run.can_be_joined(self):
            self.fate = KILLED
            return
        try:
            await self.engine.join()
            await self._train()
            await self.engine.finish()
            self.fate = FINISHED
            self.tell("met", AT_THE_END)
        except BelowQuorum:
            self.fate = BELOW_QUORUM
            self._gone()
        self.tell("ended")

    async def _train(self) -> None:
        pool = self._run.plan.pool
        if pool is not None:
            for epoch in range(pool.epochs):
                await self._train_on_pool(epoch, pool)
            return
        while self._run.steps_left[self.rank]:
            await self._step()

    async def _train_on_pool(self, epoch: int, pool: PoolPlan) -> None:
        """As a loop over a loader that prefetches."""
        course = self.engine.draws.begin(Source(0, epoch, pool.items, DIGEST), pool.batch, 1)
        ahead: deque[Item] = deque()
        while True:
            while not course.is_over and len(ahead) < pool.batch * (1 + pool.prefetched):
                for _, its, start, stop in await self.engine.draws.next(course, pool.batch):
                    ahead.extend((its, place) for place in range(start, stop))
            if not ahead:
                return
            self.tell("uses", [ahead.popleft() for _ in range(min(pool.batch, len(ahead)))])
            await self._step()

    async def _step(self) -> None:
        run, plan = self._run, self._run.plan
        step = plan.steps[self.rank] - run.steps_left[self.rank]
        for group in self.replica.inner.param_groups:
            group["lr"] = self._rate * 0.9**step
        is_shy = plan.model.shy and (self.rank + step // 2 + plan.seed) % 3 > 0
        run.data.gradients(self._model, 7 * self.rank + 3 * step, is_shy)
        if run.faults.takes_poison(self.rank):
            poison(self._model, plan.seed + step)
        if run.faults.is_huge:
            enlarge(self._model)
        await self.log.compute()
        self.engine.draws.step()
        await plan.strategy.step(self.engine, Work(plan.samples(self.rank, step)))
        self.engine.begin_computing()
        run.steps_left[self.rank] -= 1
        if plan.sync_every and run.steps_left[self.rank] % plan.sync_every == 0:
            await self._synchronize()

    async def _synchronize(self) -> None:
        generation = self.engine.ledger.sync.generation
        await self.engine.synchronize()
        self.tell("met", generation)

    def _gone(self) -> None:
        """The others learn of it after a while."""
        if self.engine.incarnation:
            self._run.world.died(self.rank, self.engine.incarnation)


class WatchedReplica(OptimizerReplica):
    """Says what it is about to apply, and that it did."""

    def __init__(self, life: Life, *parts: object) -> None:
        super().__init__(*parts)  # type: ignore[arg-type]
        self._life = life

    def deposit(self, row: object, work: Work, onto: object = None) -> tuple[bytes, bytes]:
        self._life.tell("depositing")
        return super().deposit(row, work, onto)  # type: ignore[arg-type]

    def apply(self, result: Result) -> None:
        self._life.tell("applying", result)
        super().apply(result)
        self._life.fingerprint = fingerprint(self)
        self._life.tell("applied", result)


class WatchedEngine(Engine):
    """Says when it has waited for a round."""

    def __init__(self, life: Life, tensors: SharedTensors, replay: type[WatchedReplay]) -> None:
        self.life = life
        memory = TensorMemory(life.log, tensors, life.replica.staging)
        super().__init__(life.rank, life.log.ledger.rules, life.log, memory, life.replica, replay)

    async def until_complete(self, version: int, purpose: str) -> None:
        began_ns, open_round = self.life.log.world.clock.now_ns, self.ledger.round
        await super().until_complete(version, purpose)
        self.life.tell("waited", version, open_round, began_ns)


class WatchedReplay(Replay):
    """Says when it applies a round or has adopted a snapshot."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        assert isinstance(engine, WatchedEngine)
        self.life = engine.life

    def _awaits_base(self) -> bool:
        """In every other run it never does: as if all who could write a new one were stopped."""
        return self.life.is_patient and super()._awaits_base()

    async def _adopt(self, at_least: int, is_beginning: bool = False) -> None:
        before = self.version
        await super()._adopt(at_least, is_beginning)
        self.life.fingerprint = fingerprint(self.life.replica)
        self.life.tell("adopted", before)

    async def _apply(self, record: Round) -> None:
        self.life.tell("begins_to_apply", record)
        await super()._apply(record)
