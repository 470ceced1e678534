"""Training in simulated time: real models and gradients, one replica for each rank, on a scenario's clock.

What is late is truly late: gradients are those of the weights a rank had when it began its step. Only time is
simulated, by the scenario alone: how long Python really computes does not count, nor how large the model really is.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from outpace.engines.engine import Engine
from outpace.engines.virtual.clock import Clock
from outpace.engines.virtual.memory import SharedTensors, training_engine
from outpace.engines.virtual.world import VirtualLog, World
from outpace.errors import OutpaceError
from outpace.interface import Work
from outpace.protocol.ledger import Ledger
from outpace.simulation.scenario import Scenario
from outpace.simulation.timing import Progress, Run, Timing, Watcher
from outpace.strategies import Strategy, strategy
from outpace.vector import VectorLayout

if TYPE_CHECKING:  # workloads train for real, too, with an optimizer that imports this package
    from outpace.workloads.base import Metric, Score, Workload


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
