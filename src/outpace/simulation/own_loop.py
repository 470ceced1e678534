"""`outpace.simulate`: a user's own training function, unchanged, on many simulated ranks in one process.

Owns how a `DistributedOptimizer` made inside it finds its simulated world. Real models train with real gradients; only
time is simulated: a rank's step takes what the scenario says, however long it really computes.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from outpace.engines.agreement import check_agreement, description_of
from outpace.engines.company import Company
from outpace.engines.engine import Engine, Opened
from outpace.engines.virtual.clock import Clock
from outpace.engines.virtual.memory import SharedTensors, training_engine
from outpace.engines.virtual.network import Network
from outpace.engines.virtual.threads import ThreadTask, become
from outpace.engines.virtual.world import VirtualLog, World
from outpace.errors import InvalidRules, OutpaceError, RankFailed
from outpace.imbalance import Imbalance
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules
from outpace.replica.replica import OptimizerReplica
from outpace.simulation.scenario import Scenario
from outpace.vector import VectorLayout

Result = TypeVar("Result")


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
        self._company = Company()
        world = str(job.scenario.ranks)
        here = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        self.task = ThreadTask(job.clock, self._live, here, seed=job.scenario.seed * 65537 + rank)

    def open(self, replica: OptimizerReplica, rules: Rules, max_grad_norm: float | None) -> Opened:
        """An engine for an optimizer made in this rank's thread. Waits until every rank has made one."""
        world, tensors = self._job.world(len(self.engines), replica, rules, max_grad_norm, self._rank)
        log, drive = VirtualLog(world, self._rank, self._job.scenario.pace(self._rank)), self.task.drive
        engine = training_engine(log, tensors, replica)
        self.engines.append(engine)
        with self._company.opening():
            drive(engine.join)
            return self._company.take_in(Opened(engine, drive, lambda parts: drive(log.compute, parts)))

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
            engine.leave()  # as at the end of a process; one that has finished already is not heard
        self.ended_ns = self._job.clock.now_ns
