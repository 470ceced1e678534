"""Every strategy under random pauses, crashes and restarts in simulated time: it ends, and all end alike.

A run is drawn from its seed; `RUNS` of them for each strategy. To replay one: pytest -k "wagma and 7".
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from outpace.engines.engine import Engine
from outpace.engines.virtual.clock import Clock, Task
from outpace.engines.virtual.memory import SharedTensors, training_engine
from outpace.engines.virtual.network import network
from outpace.engines.virtual.world import Speed, VirtualLog, World
from outpace.interface import Work
from outpace.protocol.ledger import Ledger
from outpace.strategies import names, strategy
from outpace.strategies.base import After
from outpace.vector import VectorLayout

RUNS = 6
MS = 1_000_000
#: Short cycles, so that little time shows much.
OPTIONS = {
    "wagma": "wagma:sync_every=4",
    "wagma:sync=wait": "wagma:sync_every=4,sync=wait",
    "local-sgd": "local-sgd:every=3",
    "post-local-sgd": "post-local-sgd:every=3,start=4",
    "diloco": "diloco:every=3",
    "noloco": "noloco:every=2",
    "sgp": "sgp:overlap=1",
    "dropcompute": "dropcompute:calibrate=3",
}


class Run:
    """Some ranks with a model each, and what happens to them."""

    def __init__(self, name: str, seed: int) -> None:
        self.draw = random.Random(f"{name}/{seed}")
        self.ranks = self.draw.randint(2, 5)
        self.strategy = strategy(OPTIONS.get(name, name))
        rules = replace(self.strategy.rules(self.ranks), min_ranks=1)
        self.clock = Clock()
        self.tensors: SharedTensors | None = None
        self.rules = rules
        self.world: World | None = None
        self.steps_left = [self.draw.randint(6, 14) for _ in range(self.ranks)]
        self.parameters: dict[int, torch.nn.Parameter] = {}
        self.tasks: dict[int, Task] = {}
        self.ended: list[int] = []
        self.engines: dict[int, Engine] = {}
        self.logs: dict[int, VirtualLog] = {}

    def born(self, rank: int) -> None:
        """A rank's process begins, for the first time or again; not when all others have ended."""
        if self.world is not None and self.world.ledger.started and self.world.ledger.ended:
            return
        parameter = self.parameters[rank] = torch.nn.Parameter(torch.full((5,), float(rank)))
        replica = self.strategy.replica(torch.optim.SGD([parameter], lr=0.05, momentum=0.5), None)
        if self.world is None:
            vector = VectorLayout.of(replica.named_parameters())
            self.tensors = SharedTensors(vector, self.rules)
            self.world = World(self.clock, Ledger(self.rules), network("host"), 1000, self.tensors)
        speed = Speed(lambda step: self.draw.randint(1, 40) * MS, apply_ns=self.draw.choice((0, MS)))
        assert self.tensors is not None
        self.logs[rank] = VirtualLog(self.world, rank, speed)
        self.engines[rank] = training_engine(self.logs[rank], self.tensors, replica)
        self.tasks[rank] = Task(self.clock, self._life(rank)).start()

    async def _life(self, rank: int) -> None:
        engine = self.engines[rank]
        await engine.join()
        while self.steps_left[rank]:
            await self._step(rank, engine)
            self.steps_left[rank] -= 1
        await self.strategy.meet(engine)
        await engine.finish()
        self.ended.append(rank)

    async def _step(self, rank: int, engine: Engine) -> None:
        parts = 3 if self.strategy.polls else 1
        parameter = self.parameters[rank]
        for done in range(1, parts + 1):
            gradient = parameter.detach() - rank
            fresh = parameter.grad is None or engine.rules.cumulative or done == 1
            parameter.grad = gradient if fresh else parameter.grad + gradient
            await self.logs[rank].compute(parts)
            samples = 1.0 if engine.rules.cumulative else float(done)
            work = Work(samples, 1.0 if engine.rules.of_sums else 1 / done, float(parts), loss=float(gradient.norm()))
            if done < parts and await self.strategy.microbatch(engine, work) is not After.GO_ON:
                break
        await self.strategy.step(engine, work)

    def pause(self, rank: int) -> None:
        task = self.tasks[rank]
        if not task.is_over:
            task.stop()
            self.clock.after(self.draw.randint(1, 300) * MS, task.go_on)

    def crash(self, rank: int) -> None:
        alive = [r for r, task in self.tasks.items() if not task.is_over]
        task, engine = self.tasks[rank], self.engines[rank]
        if task.is_over or len(alive) < 2 or not engine.incarnation:
            return
        task.kill()
        assert self.world is not None
        self.world.died(rank, engine.incarnation)
        if self.draw.random() < 0.5:
            self.clock.after(self.draw.randint(10, 400) * MS, lambda: self.born(rank))

    def play(self) -> None:
        for rank in range(self.ranks):
            self.born(rank)
        for _ in range(self.draw.randint(0, 5)):
            rank, what = self.draw.randrange(self.ranks), self.draw.choice((self.pause, self.pause, self.crash))
            self.clock.at(self.draw.randint(30, 500) * MS, lambda rank=rank, what=what: what(rank))
        self.clock.run()


@pytest.mark.parametrize("seed", range(RUNS))
@pytest.mark.parametrize("name", [*names(), "wagma:sync=wait"])
def test_it_ends_and_all_who_are_left_end_alike(name, seed):
    run = Run(name, seed)
    run.play()
    stuck = [rank for rank, task in run.tasks.items() if not task.is_over]
    assert not stuck, f"ranks {stuck} wait for ever"
    weights = [run.parameters[rank].detach() for rank in run.ended]
    assert weights
    assert all(bool(w.isfinite().all()) for w in weights)
    assert all(torch.equal(w, weights[0]) for w in weights)
