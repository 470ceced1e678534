"""WAGMA-SGD: wait-avoiding group model averaging.

Shigang Li, Tal Ben-Nun, Giorgi Nadiradze, Salvatore Di Girolamo, Nikoli Dryden, Dan Alistarh, Torsten Hoefler:
"Breaking (Global) Barriers in Parallel Stochastic Optimization with Wait-Avoiding Group Averaging", TPDS 2021,
algorithm 2, with the grouping of section 3.2 corrected (`protocol.groups`).

    W'_i = W_i + U(G_i)
    fresh:  W_i = (1/S) * sum over the group of W'_j
    stale:  W_i = (sum over the group of W'_j + W'_i) / (S + 1)
    every tau-th iteration:  W_i = mean over all ranks of W'_j

The first rank that comes to an iteration activates it for all groups. Who has not come when its grace is over is in it
with what it published last, and merges its own weights later. So nobody waits for a slow rank, except in every tau-th
iteration, where all wait for all. Momentum stays with each rank, as in the authors' code; model buffers are averaged
when all ranks meet.
"""

from __future__ import annotations

from dataclasses import dataclass

from outpace.engines.base import Engine, Ticket, Work
from outpace.errors import InvalidRules
from outpace.protocol.groups import default_size, group
from outpace.protocol.published import Frozen
from outpace.protocol.rules import Publishing, Rules
from outpace.strategies.averaging import Averaging, check_positive

ORDERS = ("step-average", "average-step")


@dataclass(frozen=True)
class Wagma(Averaging):
    """Averages in changing groups, with whoever is there.

    group_size: S, ranks in a group. Default: about the square root of their number.
    sync_every: tau. order: "step-average" is the paper's algorithm, "average-step" its proof and the authors' code.
    grace: seconds the first one leaves the others before an iteration is frozen; "auto" learns it, 0 is the paper's.

    >>> Wagma(group_size=4).group(rank=0, iteration=1, world=8)
    (0, 1, 4, 5)
    """

    group_size: int | None = None
    sync_every: int = 10
    order: str = "step-average"
    grace: str | float = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("wagma", "sync_every", self.sync_every)
        if self.order not in ORDERS:
            raise InvalidRules(f"wagma: order={self.order!r} is unknown; choose one of {', '.join(ORDERS)}")

    def rules(self, world: int) -> Rules:
        """Published weights, frozen by the first who comes."""
        self.group(0, 0, world)
        return self._sharing(world, Publishing(freeze="first", sync_every=self.sync_every), self.grace)

    def group(self, rank: int, iteration: int, world: int) -> tuple[int, ...]:
        """Whom this rank averages with."""
        return group(rank, iteration, world, default_size(world) if self.group_size is None else self.group_size)

    def is_sync(self, iteration: int) -> bool:
        """Whether all ranks average."""
        return (iteration + 1) % self.sync_every == 0

    async def step(self, engine: Engine, work: Work) -> Ticket:
        """Step and average, in the order chosen."""
        iteration = engine.steps
        if self.order == "step-average":
            await engine.local_step(work)
            return await self._average(engine, iteration)
        ticket = await self._average(engine, iteration)
        await engine.local_step(work)
        return ticket

    async def _average(self, engine: Engine, iteration: int) -> Ticket:
        others = [rank for rank in range(engine.world) if rank != engine.rank] if self.is_sync(iteration) else []
        await engine.publish(iteration, others)
        frozen = await engine.until_frozen(iteration)
        if self.is_sync(iteration):
            weights = {(rank, iteration): 1 / len(frozen.publications) for rank in frozen.publications}
            await engine.mix(weights, iteration, together=True)
            return Ticket(engine.steps, iteration, True, "on time")
        ticket = self._ticket(engine, iteration, frozen)
        while not await self._merge(engine, iteration, frozen):
            frozen = engine.current()
        return ticket

    def _ticket(self, engine: Engine, iteration: int, frozen: Frozen) -> Ticket:
        mine = frozen.publications.get(engine.rank)
        if mine is not None and mine.iteration == iteration:
            return Ticket(engine.steps, iteration, True, "on time")
        return Ticket(engine.steps, frozen.number, False, f"late: merged with what was there at {frozen.number}")

    async def _merge(self, engine: Engine, iteration: int, frozen: Frozen) -> bool:
        """False if a member writes its row again; then what is current now is averaged, this rank's own included."""
        there = frozen.publications
        members = [rank for rank in self.group(engine.rank, iteration, engine.world) if rank in there]
        mine = there.get(engine.rank)
        if set(members) <= {engine.rank}:
            return True
        if mine is not None and mine.iteration == iteration:
            return await engine.mix_frozen(frozen, dict.fromkeys(members, 1 / len(members)))
        share = 1 / (len(members) + 1)
        return await engine.mix_frozen(frozen, dict.fromkeys(members, share), own=share)
