"""Non-blocking SGD: update on finished mini-batches.

Haoze He, Parijat Dube: "Non-blocking SGD", arXiv 2211.00889. A rank's batch is split into B mini-batches. As soon as
any rank has finished all of its own, the update is made from what everybody has finished by then:

    x[k+1] = x[k] - lr[k] * (sum over i of S_i) / (sum over i of b_i)

S_i is the sum of rank i's b_i finished gradients, all of them at x[k]. The learning rate follows the finished work,
lr[k] = lr * (sum over i of b_i) / (N * B), so that a gradient weighs the same whichever round it is in; with
normalise="finished" it stays as it is, and a round of few mini-batches is as long a step as one of all.

After each mini-batch a rank leaves its sum where others can read it, so nobody is waited for, not even for a hand-over.
It sees at its next boundary that the round is over: what it had not begun is carried as data into the next round. The
mini-batch it was busy with is carried as a late gradient, as in eager-SGD, so that no work is lost. With busy="again"
it is computed again at the new weights, and nothing is late, unless it is all the rank had for this round: a rank that
needs longer for one mini-batch than the others for a round would otherwise never contribute.
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

    work: share of all planned mini-batches that must be finished, too; 0: none, 1: all of them, as in allreduce.
    grace: seconds the first finisher leaves to ranks that only jitter; "auto" learns it, 0 is the paper's.
    busy: the mini-batch under way when a round ends comes late ("carry"), or is computed again ("again").
    max_staleness: the oldest late gradient that is still applied, in rounds.
    repair: against what late mini-batches do to training, as in `Eager`.
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
        """Adds it to what this rank has finished for the round; if that is over, it goes alone into the next."""
        ticket = await engine.begin(work, is_part)
        return ticket if ticket.taken or self.busy == "again" else await engine.begin(work, alone=True)
