"""Simulated ranks whose gradients are given by the test, and who note their weights after every step.

Weights are one float64 vector for each rank. Time is simulated: `Table` says how long each rank computes. `walk` drives
strategies as coroutines, which is quick; `walk_in_rounds` is a training script of its own in `outpace.simulate`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

import outpace
from outpace import DistributedOptimizer
from outpace.engines.engine import Engine
from outpace.engines.virtual.clock import Clock, Task
from outpace.engines.virtual.memory import SharedTensors, training_engine
from outpace.engines.virtual.world import VirtualLog, World
from outpace.imbalance import Imbalance
from outpace.interface import Work
from outpace.protocol.ledger import Ledger
from outpace.protocol.round import Round
from outpace.protocol.rules import Rules
from outpace.replica.replica import OptimizerReplica
from outpace.simulation import Scenario
from outpace.strategies import strategy as by_name
from outpace.vector import VectorLayout

Gradient = Callable[[int, int, Tensor], Tensor]  #: of a rank, its step or piece of data, and its weights
Maker = Callable[[list[torch.nn.Parameter]], Optimizer]
Look = Callable[[Engine], Any]


class Table(Imbalance):
    """Computing times in milliseconds: one for each rank, or one for each rank and step."""

    def __init__(self, *milliseconds: float | Sequence[float]) -> None:
        self.milliseconds = milliseconds

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        mine = self.milliseconds[rank]
        return (mine[min(step, len(mine) - 1)] if isinstance(mine, Sequence) else mine) / 1e3


@dataclass(eq=False)
class Walk:
    """What one rank saw."""

    weight: torch.nn.Parameter
    weights: list[Tensor]  #: after each of its steps
    rounds: list[Round]  #: as it applied them
    applied: list[Tensor]  #: its weights after each of those
    seen: list[Any]  #: what `look` found after each step
    taken: list[list[int]]  #: the data that each of its rounds handed out
    end: Tensor  #: after `finish`, or its last weights

    @property
    def pieces(self) -> list[int]:
        """All data that was handed out to it, in order."""
        return list(chain.from_iterable(self.taken))

    def now(self) -> Tensor:
        return self.weight.detach().clone()

    def note_round(self, record: Round) -> None:
        self.rounds.append(record)
        self.applied.append(self.now())

    def note_step(self, engine: Engine, look: Look | None) -> None:
        self.weights.append(self.now())
        if look is not None:
            self.seen.append(look(engine))


def sgd(lr: float = 0.1, **options: Any) -> Maker:
    return lambda parameters: SGD(parameters, lr=lr, **options)


def walk(
    strategy: Any,
    ranks: int,
    steps: int | Sequence[int],
    gradient: Gradient,
    *,
    start: Sequence[float] = (0.0,),
    make: Maker | None = None,
    loss: Callable[[int, int, Tensor], float] | None = None,
    look: Look | None = None,
    finishes: bool = True,
    meets_after: int = -1,
    **options: Any,
) -> list[Walk]:
    """Every rank makes so many plain steps, or each its own number of them. They may all meet after one of them."""

    chosen, scenario = by_name(strategy), Scenario(ranks, 1, **{"network": "zero", **options})
    walks = [_new_walk(start) for _ in range(ranks)]
    replicas = [chosen.replica((make or sgd())([mine.weight]), None, mine.note_round) for mine in walks]
    logs, engines = _engines(replicas, chosen.rules(ranks), scenario)

    async def live(engine: Engine) -> None:
        rank, mine = engine.rank, walks[engine.rank]
        await engine.join()
        for step in range(steps if isinstance(steps, int) else steps[rank]):
            mine.weight.grad = gradient(rank, step, mine.now())
            work = Work(loss=None if loss is None else loss(rank, step, mine.now()))
            await logs[rank].compute()
            await chosen.step(engine, work)
            if step == meets_after:
                await chosen.meet(engine)
                await engine.synchronize()
            mine.note_step(engine, look)
        if finishes:
            await chosen.meet(engine)
            await engine.finish()
        engine.leave()
        mine.end = mine.now()

    clock = logs[0].world.clock
    tasks = [Task(clock, live(engine)).start() for engine in engines]
    clock.run()
    assert all(task.is_over for task in tasks), "nobody waits for ever"
    return walks


def walk_in_rounds(
    strategy: Any,
    data: Sequence[Sequence[int]],
    microbatches: int,
    gradient: Gradient,
    *,
    start: Sequence[float] = (0.0,),
    make: Maker | None = None,
    look: Look | None = None,
    finishes: bool = True,
    **options: Any,
) -> list[Walk]:
    """Each rank takes its data, one piece a micro-batch, in `optimizer.rounds`."""

    def live() -> Walk:
        rank, mine = int(os.environ["RANK"]), _new_walk(start)
        inner = (make or sgd())([mine.weight])
        optimizer = DistributedOptimizer(inner, strategy=strategy, on_round=mine.note_round)
        for batches in optimizer.rounds(data[rank], microbatches):
            mine.taken.append([])
            for piece in batches:
                mine.taken[-1].append(piece)
                new = gradient(rank, piece, mine.now())
                mine.weight.grad = new if mine.weight.grad is None else mine.weight.grad + new
            optimizer.step()
            mine.note_step(optimizer._engine, look)
        if finishes:
            optimizer.finish()
        mine.end = mine.now()
        return mine

    return list(outpace.simulate(live, ranks=len(data), **{"network": "zero", **options}).results)


def quadratics(minima: Tensor, curvatures: Tensor | float = 1.0) -> Gradient:
    """The full gradient of rank i's 1/2 a_i |x - c_i|^2, one row of `minima` for each rank."""
    a = torch.as_tensor(curvatures, dtype=torch.float64).expand(len(minima))
    return lambda rank, _, x: a[rank] * (x - minima[rank])


def first_only(minima: Tensor) -> Gradient:
    """One step apart, and no gradient afterwards: rank i goes to -lr * minima[i]."""
    return lambda rank, step, x: minima[rank].clone() if step == 0 else torch.zeros_like(x)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def plain(
    make: Maker,
    start: Sequence[float],
    gradients: Callable[[int, Tensor], Tensor],
    steps: int,
    strides: Sequence[float] = (),
) -> list[Tensor]:
    """What the inner optimizer makes of one gradient a step, by itself. `strides` shorten the steps of momentum."""
    weight = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer, seen = make([weight]), []
    (group,) = optimizer.param_groups
    lr = group["lr"]
    for step in range(steps):
        weight.grad = gradients(step, weight.detach().clone())
        group["lr"] = lr * strides[step] if strides and group.get("momentum") else lr
        optimizer.step()
        seen.append(weight.detach().clone())
    return seen


def at(walks: Sequence[Walk], step: int) -> Tensor:
    """All ranks' weights after a step, one row each."""
    return torch.stack([mine.weights[step] for mine in walks])


def assert_near(found: Tensor, expected: Tensor, within: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=within)


def assert_same_bits(walks: Sequence[Walk]) -> None:
    for step in range(len(walks[0].weights)):
        assert all(torch.equal(mine.weights[step], walks[0].weights[step]) for mine in walks), step


def versions(walks: Sequence[Walk]) -> dict[int, Tensor]:
    """The weights after each round. Raises if two ranks had other bits, or other contributions, in the same one."""
    found: dict[int, Tensor] = {}
    records: dict[int, Round] = {}
    for mine in walks:
        for record, weights in zip(mine.rounds, mine.applied, strict=True):
            assert torch.equal(found.setdefault(record.number, weights), weights), record
            assert records.setdefault(record.number, record) == record
    return found


def rounds_of(walks: Sequence[Walk]) -> list[Round]:
    """All rounds that any rank applied, in order."""
    return [record for _, record in sorted({r.number: r for mine in walks for r in mine.rounds}.items())]


def basis(count: int) -> Gradient:
    """Rank i's piece of data n moves one coordinate, its own: what was used how often can be read off the weights."""

    def gradient(rank: int, piece: int, weights: Tensor) -> Tensor:
        moved = torch.zeros_like(weights)
        moved[rank * count + piece] = 1.0
        return moved

    return gradient


def _new_walk(start: Sequence[float]) -> Walk:
    weight = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    return Walk(weight, [], [], [], [], [], weight.detach())


def _engines(
    replicas: list[OptimizerReplica], rules: Rules, scenario: Scenario
) -> tuple[list[VirtualLog], list[Engine]]:
    tensors = SharedTensors(VectorLayout.of(replicas[0].named_parameters()), rules)
    world = World(Clock(), Ledger(rules), scenario.links, scenario.payload_bytes, tensors)
    logs = [VirtualLog(world, rank, scenario.pace(rank)) for rank in range(len(replicas))]
    return logs, [training_engine(log, tensors, mine) for log, mine in zip(logs, replicas, strict=True)]
