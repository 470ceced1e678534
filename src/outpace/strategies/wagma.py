"""WAGMA-SGD: wait-avoiding group model averaging.

Shigang Li, Tal Ben-Nun, Giorgi Nadiradze, Salvatore Di Girolamo, Nikoli Dryden, Dan Alistarh, Torsten Hoefler:
"Breaking (Global) Barriers in Parallel Stochastic Optimization with Wait-Avoiding Group Averaging", TPDS 2021,
algorithm 2, with the grouping of section 3.2 corrected (`mixing.schedules.group`).

    W'_i = W_i + U(G_i)
    W_i  = mean of W'_j over the group of i;    over all ranks in every tau-th iteration

The first rank to reach an iteration activates it for all groups. When a grace is over it is frozen, with what was
published since the previous one: each publication is averaged once, and nobody is pulled back by older weights. A late
rank moves its step on top of what the rest of its group published last, or all ranks if it missed an average of all:

    W_i  = mean of W'_j over the others + (W'_i - W_i)

It publishes the result for the iteration that is open by then, and continues from there. So nobody waits for a slow
rank, no step is averaged away, and a late rank is level with the others again. A step that took more than tau
iterations is dropped: its rank takes the mean of the others.

In the paper, and with `sync="wait"`, all ranks wait for each other in every tau-th iteration, and a rank's iteration is
the number of its steps. A missing rank is in its group's mean with its last publication, and a late rank adds its
weights to a sum that contains these old ones: W_i = (sum of W'_j + W'_i) / (S + 1).

On several hosts, groups consist of hosts with all their ranks; with one rank per host that is the paper. A late rank
then uses the last mean that its host received. Momentum stays with each rank, as in the authors' code; model buffers
are averaged when all ranks synchronise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outpace.interface import Engine, Ticket, Work
from outpace.mixing.schedules import Placement, default_size, group, placed_group
from outpace.protocol.published import Frozen
from outpace.protocol.rules import Publishing, Rules, check_name
from outpace.strategies.averaging import Averaging, RebasingReplica, check_positive

SYNCS = ("avoid", "wait")
ORDERS = ("step-average", "average-step")


@dataclass(frozen=True)
class Wagma(Averaging):
    """Averages in changing groups, with the ranks that have arrived.

    group_size: S, ranks in a group. Default: about the square root of their number.
    sync_every: tau, iterations between averages of all ranks.
    sync: "avoid": nobody waits for the average of all, either; "wait" is the paper's.
    order: "step-average" is the paper's algorithm, "average-step" its proof and the authors' code.
    grace: seconds from the first publication until an iteration is frozen; "auto" learns it, 0 is the paper's.

    >>> Wagma(group_size=4).group(rank=0, iteration=1, world=8)
    (0, 1, 4, 5)
    """

    group_size: int | None = None
    sync_every: int = 10
    sync: str = "avoid"
    order: str = "step-average"
    grace: str | float = "auto"

    replica_type = RebasingReplica

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("wagma", "sync_every", self.sync_every)
        check_name("wagma: sync", self.sync, SYNCS)
        check_name("wagma: order", self.order, ORDERS)

    def rules(self, world: int) -> Rules:
        self.group(0, 0, world)
        meeting_every = self.sync_every if self.sync == "wait" else 0
        once = self.sync == "avoid"
        publishing = Publishing(
            *(3, "first", meeting_every, self.sync_every, once),
            groups=True,
            group_size=self.group_size,
            all_every=self.sync_every,
        )
        return self._sharing(world, publishing, self.grace)

    def group(self, rank: int, iteration: int, world: int, placement: Placement | None = None) -> tuple[int, ...]:
        """The group's ranks; on several hosts, all ranks of a group of hosts."""
        if placement is not None:
            return placed_group(rank, iteration, placement, self.group_size)
        return group(rank, iteration, world, default_size(world) if self.group_size is None else self.group_size)

    def is_sync(self, iteration: int, since: int | None = None) -> bool:
        """Whether this iteration averages all ranks, or any iteration after `since` did."""
        return (iteration + 1) // self.sync_every > (iteration if since is None else since) // self.sync_every

    async def step(self, engine: Engine, work: Work) -> Ticket:
        iteration = engine.steps
        if self.order == "step-average":
            await engine.local_step(work)
            return await self._average(engine, iteration)
        ticket = await self._average(engine, iteration)
        await engine.local_step(work)
        return ticket

    async def _average(self, engine: Engine, iteration: int) -> Ticket:
        """Waits at most for the grace, or for all ranks where `sync="wait"` has them wait."""
        engine.look()
        if self.sync == "avoid" and iteration < engine.weights.open_iteration:
            ticket = await self._merge(engine, iteration)
            await engine.weights.publish(iteration, engine.replica.published())
            return ticket
        await engine.weights.publish(iteration, engine.replica.published())
        frozen = await engine.weights.until_frozen(iteration)
        if frozen.has(engine.rank, iteration):
            await self._take_mean(engine, iteration, self.is_sync(iteration), frozen)
            return Ticket(engine.steps, iteration, True, "on time")
        if self.sync == "avoid":  # frozen while this rank wrote its row: the row goes into the next iteration
            return await self._merge(engine, iteration)
        await self._take_mean(engine, iteration, False, frozen, with_own=True)
        return self._late(engine, frozen.number)

    async def _merge(self, engine: Engine, iteration: int) -> Ticket:
        """Moves a late rank's step on top of the others' current weights."""
        now = engine.weights.open_iteration - 1
        engine.steps += now - iteration  # iterations are counted for all ranks together, as rounds are
        is_dropped = now + 1 - iteration > self.sync_every
        for ranks in self._to_read(engine, now, self.is_sync(now, since=iteration)):
            mean = await engine.weights.average(ranks, None, of_others=True)
            if mean is not None:
                (engine.replica.become if is_dropped else engine.replica.rebase)(mean)
                break
        engine.replica.remember()
        return self._late(engine, now)

    def _to_read(self, engine: Engine, iteration: int, of_all: bool) -> tuple[Sequence[int], ...]:
        """Whose weights to read, attempt by attempt: a second time if a row was overwritten meanwhile, and at last of
        the group alone. A rank that is too slow even for that keeps its own weights this time."""
        group = self.group(engine.rank, iteration, engine.world, engine.placement)
        ranks = range(engine.world) if of_all else group
        return ranks, ranks, group

    def _late(self, engine: Engine, now: int) -> Ticket:
        return Ticket(engine.steps, now, False, f"late: merged with what was there after {now}")

    async def _take_mean(
        self, engine: Engine, iteration: int, of_all: bool, frozen: Frozen | None = None, with_own: bool = False
    ) -> None:
        """Takes the mean of what is frozen; if a row was overwritten meanwhile, of all that is current."""
        for ranks in self._to_read(engine, iteration, of_all):
            own = engine.replica.published() if with_own else None
            mean = await engine.weights.average(ranks, frozen, own)
            if mean is not None:
                engine.replica.become(mean)
                return
            frozen, with_own = None, False
