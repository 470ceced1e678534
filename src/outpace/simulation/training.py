"""Training in simulated time: a built-in workload, or a user's own function by `outpace.simulate`.

Models and gradients are real, with a replica for each rank. What is late is truly late: gradients are those of the
weights a rank had when it began its step. Only time is simulated, by the scenario alone: neither how long Python really
computes counts, nor how large the model really is.
"""

from __future__ import annotations

import ctypes
import hashlib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from outpace.engines.agreement import check_agreement, description_of
from outpace.engines.engine import Engine, Opened
from outpace.engines.siblings import Siblings
from outpace.engines.virtual.clock import Clock
from outpace.engines.virtual.memory import SharedTensors, training_engine
from outpace.engines.virtual.network import Network
from outpace.engines.virtual.threads import ThreadTask, become
from outpace.engines.virtual.world import VirtualLog, World
from outpace.errors import InvalidRules, OutpaceError, RankFailed
from outpace.imbalance import Imbalance
from outpace.interface import Work
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules
from outpace.replica.replica import OptimizerReplica
from outpace.simulation.scenario import Scenario
from outpace.simulation.timing import Progress, Run, Timing, Watcher
from outpace.strategies import Strategy, strategy
from outpace.vector import VectorLayout

if TYPE_CHECKING:  # workloads train for real, too, with an optimizer that imports this package
    from outpace.workloads.base import Metric, Score, Workload

Result = TypeVar("Result")


class LossPoint(NamedTuple):
    seconds: float  #: when its step began: the weights are those of that time
    rank: int
    loss: float


class ScorePoint(NamedTuple):
    """How good a model was on held-out data while it trained."""

    seconds: float
    share: float  #: of the work that the ranks had taken by then
    score: Score


Schedule = Callable[[Optimizer], LRScheduler]  #: makes a rank's scheduler


@dataclass(frozen=True)
class Training(Timing):
    losses: tuple[LossPoint, ...]  #: of every step, in the order of time
    held_out: Score  #: at the end
    metric: Metric  #: what its second number is
    weights: str  #: a hash of the final weights, which are the same on all ranks
    curve: tuple[ScorePoint, ...] = ()  #: the untrained model, those asked for, and the final one when all have left


def simulate_training(
    choice: str | Strategy,
    scenario: Scenario,
    workload: Workload,
    progress: Progress | None = None,
    watch: Watcher | None = None,
    schedule: Schedule | None = None,
    evaluations: int = 0,
) -> Training:
    """Trains a workload under a strategy in simulated time. Blocks; the same arguments give the same weights.

    Where applying takes no time and all ranks are on one host, arrivals, seals and results come at the times of
    `simulate_timing`, unless several ranks are ready at the same nanosecond. A rank that finds no more work stays to
    apply what the others do; the figures are taken before. Raises `OutpaceError` if ranks end with different weights.

    Each rank's scheduler is stepped after each of its own steps, as in a script. With `evaluations`, the work is cut
    into so many equal parts, and after each of them the model is scored that belongs to the rank whose step it was: a
    rank that has just stepped has applied all there is. This takes no simulated time.
    """
    with torch.random.fork_rng(devices=[]):  # a model with dropout draws from torch's own generator
        torch.manual_seed(scenario.seed)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # many small steps: threads would cost more than they gain
        try:
            run = _TrainingRun(strategy(choice), scenario, workload, progress, watch, schedule, evaluations)
            run.to_its_end()
            return run.training(choice)
        finally:
            torch.set_num_threads(threads)


class _TrainingRun(Run):
    report_every = 1

    def __init__(
        self,
        chosen: Strategy,
        scenario: Scenario,
        workload: Workload,
        progress: Progress | None,
        watch: Watcher | None,
        schedule: Schedule | None,
        evaluations: int,
    ) -> None:
        self._workload = workload
        self._models = [workload.model() for _ in range(scenario.ranks)]
        self._losses: list[LossPoint] = []
        optimizers = [workload.optimizer(model) for model in self._models]
        self._schedulers = [schedule(optimizer) for optimizer in optimizers] if schedule is not None else []
        self._evaluations = evaluations
        self._curve = [ScorePoint(0.0, 0.0, workload.score(self._models[0]))] if evaluations else []
        self._replicas = [chosen.replica(*mine) for mine in zip(optimizers, self._models, strict=True)]
        rules = chosen.rules(scenario.ranks)
        self._tensors = SharedTensors(VectorLayout.of(self._replicas[0].named_parameters()), rules)
        world = World(Clock(), Ledger(rules), scenario.links, scenario.payload_bytes, self._tensors)
        super().__init__(chosen, scenario, world, progress, watch)

    def _engine(self, log: VirtualLog) -> Engine:
        return training_engine(log, self._tensors, self._replicas[log.rank])

    def training(self, choice: str | Strategy) -> Training:
        weights = [_hash_of(model) for model in self._models]
        for rank, mine in enumerate(weights):
            if mine != weights[0]:
                raise OutpaceError(f"simulated rank {rank} and rank 0 ended with different weights: please report this")
        held_out = self._workload.score(self._models[0])
        end = ScorePoint(self._world.clock.now_ns / 1e9, 1.0, held_out)
        return Training(
            **vars(self.timing(choice)),
            losses=tuple(self._losses),
            held_out=held_out,
            metric=self._workload.metric,
            weights=weights[0],
            curve=(*self._curve, end) if self._evaluations else (),
        )

    def _compute(self, engine: Engine) -> Work:
        rank, model = engine.rank, self._models[engine.rank]
        step, part = divmod(self._pool.taken[rank] - 1, self._pool.parts)
        inputs, targets = self._workload.batch(step, rank, self._scenario.ranks)
        if self._pool.parts > 1:
            inputs, targets = (t.tensor_split(self._pool.parts)[part] for t in (inputs, targets))
        if engine.rules.cumulative or not part:
            model.zero_grad()
        loss = self._workload.loss(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._losses.append(LossPoint(self._world.clock.now_ns / 1e9, rank, loss.item()))
        return Work(samples=float(len(targets)), loss=loss.item())

    def _after_step(self, engine: Engine) -> None:
        if self._schedulers:
            self._schedulers[engine.rank].step()
        share = self._pool.taken_share
        if len(self._curve) <= share * self._evaluations < self._evaluations:
            score = self._workload.score(self._models[engine.rank])
            self._curve.append(ScorePoint(self._world.clock.now_ns / 1e9, share, score))

    async def _leave(self, engine: Engine) -> None:
        await self._strategy.meet(engine)
        await engine.finish()


def _hash_of(model: nn.Module) -> str:
    """Of all bytes of its parameters and buffers."""
    hashed = hashlib.blake2b(digest_size=16)
    for tensor in model.state_dict().values():
        stored = tensor.detach().cpu().contiguous()
        hashed.update(ctypes.string_at(stored.data_ptr(), stored.numel() * stored.element_size()))
    return hashed.hexdigest()


# -- a user's own training function, unchanged, on many simulated ranks in one process --------------------------------


@dataclass(frozen=True)
class Simulated(Generic[Result]):
    """The result of a simulated run of a user's function."""

    results: tuple[Result, ...]  #: what each rank returned
    seconds: float  #: simulated, until the last rank ended
    waited_s: tuple[float, ...]  #: by each rank
    digest: str  #: of the log: equal for equal runs


def simulate(
    fn: Callable[..., Result],
    ranks: int = 8,
    args: Sequence[Any] = (),
    *,
    compute_ms: float = 100.0,
    imbalance: str | Imbalance = "none",
    network: str | Network = "ethernet",
    apply_ms: float = 0.0,
    microbatches: int = 8,
    seed: int = 0,
) -> Simulated[Result]:
    """Runs `fn(*args)` once for each simulated rank, in this process and in simulated time.

    Each rank finds RANK and WORLD_SIZE in its environment and makes its `DistributedOptimizer` as under torchrun. At
    each `step()` its clock moves on by what `compute_ms`, `imbalance` and `network` say; the time that Python really
    takes does not count. `apply_ms` is what the optimizer itself takes, `microbatches` into how many parts a strategy
    may divide a step. Ranks take turns, so that what one changes in a global is seen by all: keep state in the
    function. Blocks; the first exception is raised as `RankFailed`.

        outpace.simulate(train, ranks=8, compute_ms=100, imbalance="random:k=1,delay_ms=200")
    """
    if not callable(fn) or not isinstance(args, Sequence):
        raise InvalidRules(f"simulate({fn!r}, args={args!r}): a function is needed, and a sequence of its arguments")
    scenario = Scenario(
        ranks=ranks,
        compute_ms=compute_ms,
        imbalance=imbalance,
        network=network,
        apply_ms=apply_ms,
        microbatches=microbatches,
        seed=seed,
    )
    return _Job(scenario).run(partial(fn, *args))


class _Job:
    """All ranks of one simulated run, and the worlds their optimizers meet in, one after the other."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.clock = scenario, Clock()
        self.worlds: list[tuple[World, SharedTensors, dict[str, Any]]] = []

    def run(self, function: Callable[[], Result]) -> Simulated[Result]:
        ranks = [_Rank(self, rank, function) for rank in range(self.scenario.ranks)]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as under torchrun: last bits must not depend on this machine's cores
        try:
            for rank in ranks:
                rank.task.start()
            self.clock.run()
            for rank in ranks:
                rank.check()
        finally:
            for rank in ranks:
                rank.task.kill()
            torch.set_num_threads(threads)
        digests = "/".join(world.digest for world, _, _ in self.worlds)
        waited = tuple(sum(engine.waited_s for engine in rank.engines) for rank in ranks)
        ended_ns = max(rank.ended_ns for rank in ranks)  # the clock goes on to what was planned and nobody waits for
        return Simulated(tuple(rank.result for rank in ranks), ended_ns / 1e9, waited, digests)

    def world(self, index: int, replica: OptimizerReplica, rules: Rules, max_grad_norm: float | None, rank: int) -> Any:
        """The world of all ranks' optimizers with this index; the first rank to arrive creates it."""
        vector = VectorLayout.of(replica.named_parameters())
        description = description_of(replica, vector, rules, max_grad_norm)
        if index == len(self.worlds):
            tensors = SharedTensors(vector, rules, max_grad_norm)
            world = World(self.clock, Ledger(rules), self.scenario.links, vector.nbytes, tensors)
            self.worlds.append((world, tensors, description))
        world, tensors, first = self.worlds[index]
        check_agreement(description, first, rank)
        return world, tensors


class _Rank:
    def __init__(self, job: _Job, rank: int, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self.ended_ns = 0
        self.engines: list[Engine] = []
        self._job, self._rank, self._function = job, rank, function
        self._siblings = Siblings()
        world = str(job.scenario.ranks)
        here = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        self.task = ThreadTask(job.clock, self._live, here, seed=job.scenario.seed * 65537 + rank)

    def open(self, replica: OptimizerReplica, rules: Rules, max_grad_norm: float | None) -> Opened:
        """An engine for an optimizer made in this rank's thread. Waits until every rank has made one."""
        world, tensors = self._job.world(len(self.engines), replica, rules, max_grad_norm, self._rank)
        log, drive = VirtualLog(world, self._rank, self._job.scenario.pace(self._rank)), self.task.drive
        engine = training_engine(log, tensors, replica)
        self.engines.append(engine)
        with self._siblings.opening():
            drive(engine.join)
            return self._siblings.add(Opened(engine, drive, lambda parts: drive(log.compute, parts)))

    def check(self) -> None:
        if not self.task.is_over:
            why = "the others ended without finish(), or wait for it"
            raise OutpaceError(f"simulated rank {self._rank} waits forever: {why}")

    def _live(self) -> None:
        become(self)
        try:
            self.result = self._function()
        except (Exception, SystemExit) as error:
            raise RankFailed(f"simulated rank {self._rank} raised: {traceback.format_exc()}", self._rank) from error
        for engine in self.engines:
            engine.leave()  # as at the end of a process; ignored if it has finished already
        self.ended_ns = self._job.clock.now_ns
