"""Local SGD and its relatives: local steps, and now and then the mean of all ranks' weights.

Stich, "Local SGD converges fast and communicates little", ICLR 2019; Lin et al., "Don't use large mini-batches, use
local SGD" (post-local), ICLR 2020; Zhou et al., "DaSGD", arXiv 2006.00441 (delayed averaging).

    x_i = x_i - lr * g_i(x_i);    every H steps:  x_i = mean over j of x_j

All ranks wait for each other, but only once in H steps: random delays average out, a rank that is always slow does not.
Momentum stays with each rank; model buffers are averaged when all ranks synchronise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from outpace.errors import InvalidRules
from outpace.interface import Engine, Result, Tensors, Ticket, Work
from outpace.protocol.rules import Rules, check_name
from outpace.replica.replica import OptimizerReplica
from outpace.strategies.averaging import Averaging, check_positive

MERGES = ("delta", "lerp")


class WeightsReplica(OptimizerReplica):
    def __init__(self, *args: Any, merge: str = "replace", keep: float = 0.0) -> None:
        super().__init__(*args)
        self._merge, self._keep = merge, keep
        self._given: list[torch.Tensor] | None = None  # what it contributed to the round that is not applied yet

    def deposit(self, row: Tensors, work: Work, onto: Tensors | None = None) -> tuple[bytes, bytes]:
        self.check_unchanged()
        weights = [p.detach() for p in self.parameters]
        self.staging.down(row, weights)
        if self._merge != "replace":
            self._given = [w.clone() for w in weights]
        hyper = self._own_hyper()
        self.staging.landed()
        return b"\1" * len(weights), hyper

    def apply(self, result: Result) -> None:
        with self._changing():
            if not result.round.void:
                weights = [p.detach() for p in self.parameters]
                self._take(weights, list(self.staging.up(result.gradients, weights)))
            self._given = None
            self.version += 1
        if self._on_round is not None:
            self._on_round(result.round)

    def on_weights_replaced(self) -> None:
        self._given = None

    def _take(self, weights: list[torch.Tensor], mean: list[torch.Tensor]) -> None:
        if self._given is None:
            torch._foreach_copy_(weights, mean)
        elif self._merge == "lerp":  # keep * own + (1 - keep) * mean
            torch._foreach_lerp_(weights, mean, 1 - self._keep)
        else:  # mean + (now - then)
            torch._foreach_sub_(weights, self._given)
            torch._foreach_add_(weights, mean)


@dataclass(frozen=True)
class LocalSGD(Averaging):
    """Averages all ranks' weights every few steps.

    every: H, steps between two averages; 1 is allreduce of weights.
    """

    every: int = 8

    replica_type: ClassVar[Callable[..., OptimizerReplica]] = WeightsReplica

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("local-sgd", "every", self.every)

    def rules(self, world: int) -> Rules:
        return Rules(world, quorum="full", normalise="contributors", grace=0.0, min_ranks=self.min_ranks)

    def is_due(self, steps: int) -> bool:
        return steps % self.every == 0

    async def step(self, engine: Engine, work: Work) -> Ticket:
        await self._own_step(engine, work)
        if not self.is_due(engine.steps):
            return Ticket(engine.steps, engine.ledger.round, False, "a step of its own")
        engine.state["has_own"] = False
        return await engine.finish_round(await engine.begin(work))

    async def meet(self, engine: Engine) -> None:
        """Contributes the steps since the last average, so that they are averaged with the others'."""
        if engine.state.get("has_own"):
            engine.state["has_own"] = False
            await engine.begin(Work())

    async def _own_step(self, engine: Engine, work: Work) -> None:
        await engine.local_step(work)
        engine.state["has_own"] = True


@dataclass(frozen=True)
class PostLocalSGD(LocalSGD):
    """Averages after every step at first, and every few steps later on.

    start: the step from which `every` applies; usually where the learning rate is first lowered.
    """

    start: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("post-local-sgd", "start", self.start)

    def is_due(self, steps: int) -> bool:
        return steps <= self.start or steps % self.every == 0


@dataclass(frozen=True)
class DaSGD(LocalSGD):
    """Keeps computing while it averages: the mean of step t is merged at step t + d.

        delta:  x_i(t+d) = mean x(t) + (x_i(t+d) - x_i(t))        lerp:  x_i(t+d) = xi * x_i(t+d) + (1 - xi) * mean x(t)

    A rank waits only if the mean is not there after d steps. On one machine the last rank to arrive reduces.

    delay: d, at most `every`; 0 is local SGD.
    merge: "delta", or "lerp", which keeps a share of the rank's own weights.
    xi: that share.
    """

    every: int = 4
    delay: int = 1
    merge: str = "delta"
    xi: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.delay, int) or not 0 <= self.delay <= self.every:
            raise InvalidRules(f"dasgd: delay={self.delay!r} must be a number of steps from 0 to every={self.every}")
        check_name("dasgd: merge", self.merge, MERGES)
        if not 0 <= self.xi < 1:
            raise InvalidRules(f"dasgd: xi={self.xi!r} must be a share, from 0 to less than 1")

    def _replica_options(self) -> dict[str, Any]:
        return {"merge": self.merge if self.delay else "replace", "keep": self.xi}

    async def step(self, engine: Engine, work: Work) -> Ticket:
        await self._own_step(engine, work)
        last: Ticket = engine.state.get("ticket", Ticket(0, 0, False, "nothing averaged yet"))
        if "due" in engine.state and engine.steps >= engine.state["due"]:
            await self._merge_mean(engine)
        if self.is_due(engine.steps):
            engine.state["has_own"] = False
            engine.state["due"] = engine.steps + self.delay
            last = engine.state["ticket"] = await engine.begin(work)
            await engine.help()
            if not self.delay:
                await self._merge_mean(engine)
        return last

    async def meet(self, engine: Engine) -> None:
        if "due" in engine.state:
            await self._merge_mean(engine)
        await super().meet(engine)

    async def _merge_mean(self, engine: Engine) -> None:
        del engine.state["due"]
        await engine.finish_round(engine.state["ticket"])
