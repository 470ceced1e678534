"""Non-blocking SGD: update on finished mini-batches.

Haoze He, Parijat Dube: "Non-blocking SGD", arXiv 2211.00889. A rank's batch is split into B mini-batches. As soon as
any rank has finished all of its own, the update is made from what all ranks have finished by then:

    x[k+1] = x[k] - lr[k] * (sum over i of S_i) / (sum over i of b_i)

S_i is the sum of rank i's b_i finished gradients, all of them at x[k]. The learning rate follows the finished work,
lr[k] = lr * (sum over i of b_i) / (N * B), so that a gradient has the same weight in every round. With
normalise="finished" it stays constant, and a round of few mini-batches makes as long a step as one of all.

After each mini-batch a rank leaves its sum where others can read it, so they never wait for it to hand anything over.
At its next boundary it sees that the round is over. Mini-batches it has not begun go to the next round. The one it was
computing is carried as a late gradient, as in eager-SGD, so that no work is lost. With busy="again" it is computed
again at the new weights, so that nothing is late, unless it is the rank's only one for this round: a rank that takes
longer for one mini-batch than the others for a round would otherwise never contribute.
"""

from __future__ import annotations

from dataclasses import dataclass

from outpace.errors import InvalidRules
from outpace.interface import Engine, Ticket, Work
from outpace.protocol.rules import Rules, check_name
from outpace.strategies.base import After, CountsMicrobatches

BUSY = ("carry", "again")


@dataclass(frozen=True)
class NonBlocking(CountsMicrobatches):
    """The first rank that finishes its batch ends the round for all.

    work: share of all planned mini-batches that must also be finished; 0: none, 1: all of them, as in allreduce.
    grace: seconds to wait after the first finisher for ranks that only jitter; "auto" learns it, 0 is the paper's.
    busy: the mini-batch under way when a round ends arrives late ("carry"), or is computed again ("again").
    max_staleness: gradients later than this many rounds are dropped.
    repair: how to make up for late mini-batches, as in `Eager`.
    rest, normalise: as in `CountsMicrobatches`.

    >>> NonBlocking(work=0.5).rules(world=8).work
    0.5
    """

    work: float = 0.0
    grace: str | float = 0.0
    busy: str = "carry"
    max_staleness: int = 8
    repair: str = "look-ahead"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.work <= 1:
            raise InvalidRules(f"nonblocking: work={self.work!r} must be a share of the planned work, from 0 to 1")
        check_name("nonblocking: busy", self.busy, BUSY)

    def rules(self, world: int) -> Rules:
        return self._rules(world, quorum="solo", cumulative=True)

    async def microbatch(self, engine: Engine, work: Work) -> After:
        ticket = await self._give(engine, work, is_part=True)
        if ticket.taken and ticket.round == engine.version:
            return After.GO_ON
        engine.state["over"] = ticket
        return After.STOP if ticket.taken else After.AGAIN

    async def step(self, engine: Engine, work: Work) -> Ticket:
        return await engine.finish_round(engine.state.pop("over", None) or await self._give(engine, work))

    async def _give(self, engine: Engine, work: Work, is_part: bool = False) -> Ticket:
        """Adds work to what this rank has contributed to the round; if that is over, contributes it to the next."""
        ticket = await engine.begin(work, is_part)
        return ticket if ticket.taken or self.busy == "again" else await engine.begin(work, alone=True)
