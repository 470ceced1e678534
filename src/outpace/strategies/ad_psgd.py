"""AD-PSGD: asynchronous pairwise averaging.

Lian, Zhang, Zhang, Liu: "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018, algorithm 1.

    x_i, x_j = (x_i + x_j) / 2 for a random neighbour j;    x_i = x_i - lr * g(x^_i)

The gradient was computed at x^_i, what x_i was before others averaged with it. Nobody waits: a swap is written beside
both ranks' weights and takes effect at once, or not at all if one of them changed meanwhile; then it is redone. The
neighbour need not do anything, and may even be stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from outpace.interface import Engine, Notes, Ticket, Work
from outpace.mixing import topology
from outpace.mixing.schedules import random_neighbour
from outpace.protocol.rules import Publishing, Rules
from outpace.replica.replica import OptimizerReplica, RoundHook
from outpace.strategies.averaging import Averaging, SharingReplica
from outpace.strategies.gossip import mixing_rows


class SwappingReplica(SharingReplica):
    """Remembers its weights as others have them, so that its steps can be put on top of what others made of them."""

    def __init__(self, inner: Optimizer, model: torch.nn.Module | None, on_round: RoundHook | None = None) -> None:
        super().__init__(inner, model, on_round)
        self._base: list[torch.Tensor] | None = None

    def averaged(self, notes: Notes) -> None:
        """The weights are an average now."""
        self._remember()

    @torch.no_grad()
    def rebase(self, weights: Sequence[torch.Tensor]) -> None:
        """weights + (mine - base)."""
        mine = self.published()
        if self._base is not None:
            torch._foreach_sub_(mine, self._base)
            torch._foreach_add_(mine, list(weights))
        self._base = list(weights)

    def has_published(self) -> None:
        """What is with the others is what the next steps go back to."""
        self._remember()

    def met(self) -> None:
        """All begin anew from the mean."""
        self._remember()

    def begin_anew(self) -> None:
        """Its steps so far are not in these weights."""
        self._base = None

    def _remember(self) -> None:
        self._base = [w.clone() for w in self.published()]


@dataclass(frozen=True)
class ADPSGD(Averaging):
    """Averages with one random neighbour before every step, and waits for nobody.

    graph: who may be whose neighbour; as in d-psgd.
    """

    graph: str = "exponential"
    seed: int = 0

    def rules(self, world: int) -> Rules:
        """Published weights; two spare rows for a swap."""
        topology.graph(self.graph, world, self.seed)
        return self._sharing(world, Publishing(rows=3))

    def replica(
        self, optimizer: Optimizer, model: torch.nn.Module | None, on_round: RoundHook | None = None
    ) -> OptimizerReplica:
        """One that can put its steps on top of what others made of its weights."""
        return SwappingReplica(optimizer, model, on_round)

    async def step(self, engine: Engine, work: Work) -> Ticket:
        """Swap, step, publish; again if somebody swapped meanwhile."""
        row = mixing_rows(self.graph, "metropolis", engine.world, self.seed)[engine.rank]
        neighbours = [rank for rank in row if rank != engine.rank]
        if neighbours:
            await self._ensure_published(engine)
            await engine.swap(random_neighbour(engine.rank, engine.steps, neighbours, self.seed))
        await engine.local_step(work)
        while neighbours and not await engine.publish(engine.steps):
            await engine.rebase()
        return Ticket(engine.steps, engine.steps - 1, False, "waited for nobody")

    async def meet(self, engine: Engine) -> None:
        """Take over what others made of these weights. What they made of them from here on would be lost."""
        await engine.withdraw()

    async def _ensure_published(self, engine: Engine) -> None:
        """Before the first step, and after all have met."""
        if engine.memory.get("met") != engine.ledger.sync.generation:
            engine.memory["met"] = engine.ledger.sync.generation
            while not await engine.publish(engine.steps):
                engine.look()
