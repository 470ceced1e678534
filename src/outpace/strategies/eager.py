"""Eager-SGD: partial allreduce with a quorum.

Shigang Li, Tal Ben-Nun, Salvatore Di Girolamo, Dan Alistarh, Torsten Hoefler: "Taming Unbalanced Training Workloads in
Deep Learning with Partial Collective Operations", PPoPP 2020, sections 4 and 5, algorithm 2.

    w[t+1] = w[t] + U( (1/P) * sum over i in S[t] of g[i], t )

S[t] is the set of ranks that arrived before the round's seal: on time, or late and carried over. A rank on time waits
for the quorum; a late one waits for nobody. Two differences from the paper: every rank applies every round, so replicas
never drift apart; and a majority is an exact count, not an expectation.
"""

from __future__ import annotations

from dataclasses import dataclass

from outpace.interface import Engine, Ticket, Work
from outpace.protocol.rules import Rules
from outpace.strategies.base import Strategy


@dataclass(frozen=True)
class Eager(Strategy):
    """A round goes ahead with a quorum; late contributions are carried into the next one.

    quorum: "solo" (the first arrival), "majority" (at least half, exactly), "full", a number of ranks, a fraction,
        "auto" (most progress, judged from observed arrivals) or "majority-random" (the paper's, by a shared seed).
    late: "carry" a late contribution into the open round, "count" it toward the quorum as well (asynchronous SGD), or
        "drop" it.
    max_staleness: contributions later than this many rounds are dropped.
    normalise: divide the sum by the "world", by the "contributors", or weigh by "samples".
    grace: seconds to wait after the quorum for ranks that only jitter; "auto" learns it, 0 is the paper's behaviour.
    repair: how to make up for late work. "look-ahead": while some work is late, gradients are computed a little ahead
        of the weights, so that learning rates near the best one train as in allreduce; work later than one round also
        weighs less, and its rank gets the missing weight back on time. "discount": only the lower weight, from the
        first round on. "none": nothing, as in the paper.
    min_ranks: with fewer ranks left than this, the run ends with `BelowQuorum`. Default: the quorum at the start.
    codec: compression of gradients: "none", "bf16", "global-qsgd", "ok-topk".

    >>> Eager(quorum="majority").rules(world=8).quorum
    'majority'
    """

    quorum: str | int | float = "majority"
    late: str = "carry"
    max_staleness: int = 8
    normalise: str = "world"
    grace: str | float = "auto"
    repair: str = "look-ahead"
    min_ranks: int | None = None
    seed: int = 0
    codec: str = "none"

    def rules(self, world: int) -> Rules:
        return self._rules(world, quorum="auto" if self.quorum == "adaptive" else self.quorum)  # its name in 0.1

    async def step(self, engine: Engine, work: Work) -> Ticket:
        return await engine.finish_round(await engine.begin(work))
