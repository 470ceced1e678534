"""Gossip: each rank averages its weights with its neighbours in a graph.

D-PSGD: Lian et al., "Can decentralized algorithms outperform centralized algorithms?", NeurIPS 2017.
MATCHA: Wang, Sahu, Yang, Joshi, Kar, "MATCHA: speeding up decentralized SGD via matching decomposition sampling", 2019.

    atc:  x_i = sum over j of W_ij (x_j - lr * g_j)          awc:  x_i = (sum over j of W_ij x_j) - lr * g_i

A rank waits only for its neighbours, but in lock-step: a slow rank slows its neighbours, and they slow theirs. That
saves bandwidth and latency, but does not help against stragglers. Momentum stays with each rank; buffers are averaged
when all ranks synchronise. A neighbour that has left is left out, and its weight goes to the rank itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from outpace.errors import InvalidRules
from outpace.interface import Engine, Mixed, Notes, Ticket, Work
from outpace.mixing import matchings, topology
from outpace.mixing.topology import Row, keep_present
from outpace.protocol.rules import OF_SUMS, Publishing, Rules, check_name
from outpace.strategies.averaging import Averaging
from outpace.strategies.base import After

ORDERS = ("atc", "awc")


@lru_cache(maxsize=64)
def mixing_rows(graph: str, mixing: str, world: int, seed: int) -> list[Row]:
    """Row i of W for each rank i, in order of ranks. Cached, so callers must not change it.

    Raises `InvalidRules` for a graph that does not fit the world.
    """
    return [dict(sorted(row.items())) for row in topology.mixing(mixing, topology.graph(graph, world, seed))]


@dataclass(frozen=True)
class DPSGD(Averaging):
    """Averages with the neighbours in a graph after every step.

    graph: ring, torus, exponential, erdos-renyi, star, complete, or edges such as 0-1+1-2+2-0.
    mixing: weights of the edges, "metropolis" or "best-constant".
    order: "atc", step, then average; or "awc", average the weights before the step, then step.

    >>> DPSGD(graph="star").row(rank=1, iteration=0, world=4)
    {0: 0.25, 1: 0.75}
    """

    graph: str = "ring"
    mixing: str = "metropolis"
    order: str = "atc"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("order", self.order, ORDERS)

    def rules(self, world: int) -> Rules:
        self.row(0, 0, world)
        return self._sharing(world, Publishing())

    def row(self, rank: int, iteration: int, world: int) -> Row:
        """The weight of each rank in this rank's average."""
        return mixing_rows(self.graph, self.mixing, world, self.seed)[rank]

    async def step(self, engine: Engine, work: Work) -> Ticket:
        iteration = engine.steps
        row = self.row(engine.rank, iteration, engine.world)
        if self.order == "atc":
            await engine.local_step(work)
        await self._average(engine, row, iteration, work)
        if self.order == "awc":
            await engine.local_step(work)
        return Ticket(engine.steps, iteration, len(row) > 1, "on time")

    async def _average(self, engine: Engine, row: Row, iteration: int, work: Work) -> None:
        values = engine.replica.published()
        if len(row) == 1:
            engine.replica.become(Mixed(values))
            return
        neighbours = [rank for rank in row if rank != engine.rank]
        await engine.weights.publish(iteration, values, neighbours, self._notes(work))
        present = await engine.weights.gather(iteration, row)
        shares = self._shares(engine, keep_present(row, engine.rank, present), present)
        mean = await engine.weights.mix({(rank, iteration): share for rank, share in shares.items()}, iteration)
        engine.replica.become(mean)

    def _notes(self, work: Work) -> Notes:
        return ()

    def _shares(self, engine: Engine, row: Row, present: dict[int, Notes]) -> Row:
        return row


@dataclass(frozen=True)
class Matcha(DPSGD):
    """Averages in random matchings of a graph, under a budget of communication.

        x_i = sum over j of W_ij(k) (x_j - lr * g_j),    W(k) = I - alpha * sum over m of B_m(k) L_m

    The graph's edges are split into matchings, each active with a probability of its own, drawn from a shared seed.
    Without an active edge a rank waits for nobody.

    budget: the mean share of matchings that is active, in (0, 1]; 1 is D-PSGD with the best constant weight.
    """

    graph: str = "erdos-renyi"
    budget: float = 0.5

    def row(self, rank: int, iteration: int, world: int) -> Row:
        return matchings.plan(self.graph, world, self.budget, self.seed).row(rank, iteration)


@dataclass(frozen=True)
class NonBlockingDPSGD(DPSGD):
    """Non-blocking SGD on D-PSGD: the first rank that finishes its batch ends the iteration for all.

        y_i = x_i - lr * S_i / b_i  (or / B);    x_i = sum over j of W_ij y_j

    S_i is the sum of the b_i mini-batches that rank i has finished when it sees the signal, at its next boundary. The
    others wait for it no longer than that. Mini-batches it had not begun go to the next iteration.

    normalise: divide by the "planned" mini-batches, so that a step is as large as the work in it, as the authors do; or
        by the "finished" ones: a lagging rank then takes whole steps on single mini-batches.
    """

    normalise: str = "planned"

    polls = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("normalise", self.normalise, OF_SUMS)

    async def step(self, engine: Engine, work: Work) -> Ticket:
        if self.normalise == "planned":
            work = work._replace(scale=work.scale * work.share)
        return await super().step(engine, work)

    async def microbatch(self, engine: Engine, work: Work) -> After:
        """Stops once any rank has finished this iteration, unless this rank has no neighbours in it."""
        if len(self.row(engine.rank, engine.steps, engine.world)) == 1:
            return After.GO_ON
        engine.look()
        return After.STOP if engine.ledger.published.furthest >= engine.steps else After.GO_ON


@dataclass(frozen=True)
class NonBlockingMatcha(NonBlockingDPSGD, Matcha):
    """Non-blocking SGD on MATCHA. Iterations without an active edge need no signal and are never cut short."""


@dataclass(frozen=True)
class ALDSGD(DPSGD):
    """AL-DSGD (He, Wang, Choromanska, arXiv 2405.11389): gossip with a pull toward adjacent leaders.

        z_i = (1 - c1 - c2) * sum over j of W_ij y_j  +  c1 * y_l + c2 * y_h
        x_i = z_i - p1 * (z_i - y_l) - p2 * (z_i - y_h)

    y_j = x_j - lr * g_j; l is the neighbour with the lowest loss, h the one with the highest degree, both may be i.
    Give the loss to `step(loss=...)`: without it l is the rank itself. The mean over the ranks is not preserved.

    c1, c2: share of l's and of h's weights in the mean.
    p1, p2: how far the mean is then pulled toward them.
    every: steps between two pulls.
    rotate: the graph alternates with a relabelled copy, so that ranks with many neighbours in one have few in the
        other.
    """

    graph: str = "erdos-renyi"
    c1: float = 0.3
    c2: float = 0.1
    p1: float = 0.1
    p2: float = 0.1
    every: int = 1
    rotate: bool = True

    follows_loss = True

    def __post_init__(self) -> None:
        super().__post_init__()
        pulls = (self.c1, self.c2, self.p1, self.p2)
        if not all(0 <= pull <= 1 for pull in pulls) or self.c1 + self.c2 > 1 or self.p1 + self.p2 > 1:
            raise InvalidRules(
                "al-dsgd: c1, c2, p1 and p2 must be shares from 0 to 1, and c1 + c2 and p1 + p2 at most 1"
            )

    def row(self, rank: int, iteration: int, world: int) -> Row:
        """The row in the graph, or in its copy, where every rank takes the place of its mirror image."""
        rows = mixing_rows(self.graph, self.mixing, world, self.seed)
        if not self.rotate or iteration % 2 == 0:
            return rows[rank]
        return {world - 1 - other: weight for other, weight in reversed(rows[world - 1 - rank].items())}

    def _notes(self, work: Work) -> Notes:
        return (float("inf") if work.loss is None else work.loss,)

    def _shares(self, engine: Engine, row: Row, present: dict[int, Notes]) -> Row:
        iteration = engine.steps - 1 if self.order == "atc" else engine.steps
        if iteration % self.every:
            return row
        lowest = min(present, key=lambda rank: (present[rank], rank != engine.rank, rank))
        highest = max(present, key=lambda rank: (len(self.row(rank, iteration, engine.world)), rank == engine.rank))
        z = {rank: (1 - self.c1 - self.c2) * weight for rank, weight in row.items()}
        z[lowest] += self.c1
        z[highest] += self.c2
        x = {rank: (1 - self.p1 - self.p2) * weight for rank, weight in z.items()}
        x[lowest] += self.p1
        x[highest] += self.p2
        return x


@dataclass(frozen=True)
class DSGDAAU(Averaging):
    """DSGD-AAU (Xiong, Yan, Wang, Li, arXiv 2306.06559): adaptive asynchronous updates.

        X = P_k (X - lr * G_k)

    A rank that finishes a step waits until an edge between two waiting ranks connects parts of the graph that were not
    connected yet. All waiting ranks then average by Metropolis weights over the edges between them; the others keep
    their weights. So the others wait for a slow rank only once in each search, when only its edges are missing.

    graph: as in `d-psgd`.
    """

    graph: str = "ring"
    seed: int = 0

    def rules(self, world: int) -> Rules:
        edges = topology.edges_of(topology.graph(self.graph, world, self.seed))
        return self._sharing(world, Publishing(freeze="path" if edges else "", edges=edges))

    async def step(self, engine: Engine, work: Work) -> Ticket:
        iteration = engine.steps
        await engine.local_step(work)
        if engine.world > 1:
            await engine.weights.publish(iteration, engine.replica.published())
            frozen = await engine.weights.until_frozen(iteration)
            publishing = engine.rules.publishes
            assert publishing is not None
            row = topology.metropolis_over(publishing.edges, frozen.publications)[engine.rank]
            mean = await engine.weights.mix_frozen(frozen, row)
            if mean is not None:
                engine.replica.become(mean)
        return Ticket(engine.steps, iteration, True, "on time")
