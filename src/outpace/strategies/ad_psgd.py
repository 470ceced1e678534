"""AD-PSGD: asynchronous pairwise averaging.

Lian, Zhang, Zhang, Liu: "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018, algorithm 1.

    x_i, x_j = (x_i + x_j) / 2 for a random neighbour j;    x_i = x_i - lr * g(x^_i)

The gradient was computed at x^_i, the value of x_i before others averaged with it. Nobody waits: a swap is written
beside both ranks' weights and takes effect atomically, or not at all if one of them changed meanwhile; then it is
repeated. The neighbour need not do anything, and may even be stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

from outpace.interface import Engine, Ticket, Work
from outpace.mixing import topology
from outpace.mixing.schedules import random_neighbour
from outpace.protocol.rules import Publishing, Rules
from outpace.strategies.averaging import Averaging, RebasingReplica
from outpace.strategies.gossip import mixing_rows


@dataclass(frozen=True)
class ADPSGD(Averaging):
    """Averages with one random neighbour before every step, and waits for nobody.

    graph: which ranks are neighbours; as in d-psgd.
    """

    graph: str = "exponential"
    seed: int = 0

    replica_type = RebasingReplica

    def rules(self, world: int) -> Rules:
        edges = topology.edges_of(topology.graph(self.graph, world, self.seed))
        return self._sharing(world, Publishing(rows=3, edges=edges))

    async def step(self, engine: Engine, work: Work) -> Ticket:
        row = mixing_rows(self.graph, "metropolis", engine.world, self.seed)[engine.rank]
        neighbours = [rank for rank in row if rank != engine.rank]
        if neighbours:
            await self._ensure_published(engine)
            mean = await engine.weights.swap(random_neighbour(engine.rank, engine.steps, neighbours, self.seed))
            if mean is not None:
                engine.replica.become(mean)
        await engine.local_step(work)
        while neighbours and not await self._publish(engine):
            await self._rebase(engine)
        return Ticket(engine.steps, engine.steps - 1, False, "waited for nobody")

    async def meet(self, engine: Engine) -> None:
        """Takes over the others' swaps and withdraws its publication: a later swap would be lost."""
        while await self._rebase(engine):
            await engine.weights.withdraw()

    async def _publish(self, engine: Engine) -> bool:
        is_published = await engine.weights.publish(engine.steps, engine.replica.published())
        if is_published:
            engine.replica.remember()
        return is_published

    async def _rebase(self, engine: Engine) -> bool:
        """Moves this rank's last steps on top of its weights as others changed them. False if none are published."""
        changed = await engine.weights.changed_by_others()
        if changed is not None:
            engine.replica.rebase(changed)
        return changed is not None

    async def _ensure_published(self, engine: Engine) -> None:
        """Publishes before the first step, and after each synchronisation."""
        if engine.state.get("met") != engine.ledger.sync.generation:
            engine.state["met"] = engine.ledger.sync.generation
            while not await self._publish(engine):
                engine.look()
