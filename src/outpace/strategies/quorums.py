"""Quorums and asynchronous SGD with guarantees: m-Synchronous SGD, Rennala SGD, Ringmaster ASGD.

All three are rounds with different rules. In common they throw away gradients computed at weights that are too old, so
that the staleness of everything applied is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass

from outpace.errors import InvalidRules
from outpace.interface import Engine, Ticket, Work
from outpace.protocol.rules import Rules
from outpace.strategies.base import After, Strategy


@dataclass(frozen=True)
class MSync(Strategy):
    """m-Synchronous SGD (Begunov, Tyurin, arXiv 2602.03802): applies the first m gradients and cancels the others.

        x[k+1] = x[k] - lr * (1/m) * sum of the first m gradients at x[k]

    All ranks wait for the m-th fastest. In `rounds`, a rank stops at the next micro-batch once m gradients are there;
    in a plain loop its gradient is dropped as late. Ranks that are always slow never contribute.

    m: a number of ranks, or a fraction of all.

    >>> MSync(m=3).rules(world=4).quorum
    3
    """

    m: int | float = 0.75
    codec: str = "none"
    min_ranks: int | None = None

    polls = True
    drops_rest = True

    def rules(self, world: int) -> Rules:
        return self._rules(world, quorum=self.m, late="drop", grace=0.0, normalise="contributors")

    async def microbatch(self, engine: Engine, work: Work) -> After:
        engine.look()
        if engine.ledger.round == engine.version:
            return After.GO_ON
        engine.state["cancelled"] = True
        return After.STOP

    async def step(self, engine: Engine, work: Work) -> Ticket:
        if engine.state.pop("cancelled", False):
            ticket = Ticket(0, engine.ledger.round, False, "cancelled: m others were faster", taken=False)
        else:
            ticket = await engine.begin(work)
        return await engine.finish_round(ticket)


@dataclass(frozen=True)
class Rennala(Strategy):
    """Rennala SGD (Tyurin, Richtarik, NeurIPS 2023): B gradients at the current weights, from any ranks.

        x[k+1] = x[k] - lr * (1/B) * sum of the first B gradients at x[k]

    Nobody waits: a rank that is done computes another gradient at the same weights, until there are B. Unfinished
    gradients are then thrown away.

    batch: B, in gradients (micro-batches in `rounds`). Default: as many as all ranks together plan for one step.

    >>> Rennala(batch=5).rules(world=4).work
    5
    """

    batch: int | None = None
    codec: str = "none"
    min_ranks: int = 1

    polls = True

    def __post_init__(self) -> None:
        if self.batch is not None and (not isinstance(self.batch, int) or self.batch < 1):
            raise InvalidRules(f"rennala: batch={self.batch!r} must be a whole number of gradients, at least 1")

    def rules(self, world: int) -> Rules:
        return self._rules(
            world, quorum="work", work=self.batch or 0, late="drop", grace=0.0, cumulative=True, normalise="finished"
        )

    async def microbatch(self, engine: Engine, work: Work) -> After:
        ticket = await engine.begin(work, is_part=True)
        engine.look()
        if engine.ledger.round == engine.version:
            return After.GO_ON
        engine.state["over"] = ticket
        return After.STOP

    async def step(self, engine: Engine, work: Work) -> Ticket:
        ticket: Ticket = engine.state.pop("over", None) or await engine.begin(work, is_part=True)
        await engine.catch_up()
        return ticket


@dataclass(frozen=True)
class Ringmaster(Strategy):
    """Ringmaster ASGD (Maranjyan, Tyurin, Richtarik, ICML 2025, algorithm 1): every gradient is an update.

        on arrival of g from rank i, computed delta_i updates ago:
            if delta_i < R:  x = x - lr * g      else: throw g away

    Nobody waits. Every applied gradient has a delay below R.

    delay: R. Default: twice the number of ranks; the usual delay among P equally fast ranks is P - 1.
    repair: "discount" gives less weight to work later than usual, as in `Eager`; "none" is the paper's.
    normalise: "world" divides each gradient by the number of ranks, so that a pass over the data moves the weights as
        far as in allreduce with the same learning rate; "sum" is the paper's, with a learning rate to match.

    >>> Ringmaster(delay=4).rules(world=8).max_staleness
    3
    """

    delay: int | None = None
    normalise: str = "world"
    repair: str = "none"
    codec: str = "none"
    min_ranks: int = 1

    def __post_init__(self) -> None:
        if self.delay is not None and (not isinstance(self.delay, int) or self.delay < 1):
            raise InvalidRules(f"ringmaster: delay={self.delay!r} must be a whole number, at least 1")
        if self.normalise not in ("world", "sum"):
            raise InvalidRules(f"ringmaster: normalise={self.normalise!r} must be world or sum")

    def rules(self, world: int) -> Rules:
        delay = 2 * world if self.delay is None else self.delay
        late, max_staleness = "count" if delay > 1 else "drop", max(1, delay - 1)
        return self._rules(world, quorum="solo", late=late, max_staleness=max_staleness, grace=0.0, one_at_a_time=True)

    async def step(self, engine: Engine, work: Work) -> Ticket:
        return await engine.finish_round(await engine.begin(work))
