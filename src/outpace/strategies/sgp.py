"""SGP: stochastic gradient push.

Assran, Loizou, Ballas, Rabbat: "Stochastic gradient push for distributed deep learning", ICML 2019, algorithms 1 and 2.

    x_i = x_i - lr * g(z_i);   x_i = sum over j of P_ij x_j;   w_i = sum over j of P_ij w_j;   z_i = x_i / w_i

Each rank pushes equal shares of its numerator x and of its push-weight w to the peers whose turn it is; P is
column-stochastic, so nothing is lost. The optimizer steps the numerator; forward and backward use z. A sender does not
wait; a receiver waits for what is pushed to it, or with overlap only for pushes more than that many steps old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from outpace.errors import InvalidRules
from outpace.interface import Engine, Mixed, Own, Ticket, Work
from outpace.mixing.schedules import most_peers, push_peers, push_sources
from outpace.protocol.rules import Publishing, Rules
from outpace.strategies.averaging import Averaging, SharingReplica, check_positive


class PushReplica(SharingReplica):
    """Keeps the numerator; the weights are the numerator divided by the push-weight."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._weight = torch.ones(1, dtype=torch.float64, device="cpu")
        self._numerator = [p.detach().clone() for p in self.parameters]

    def published(self) -> list[torch.Tensor]:
        return self._numerator

    def push_weight(self) -> float:
        return float(self._weight)

    def become(self, mean: Mixed) -> None:
        super().become(mean)
        self._weight.fill_(mean.notes[0])
        self._divide()

    def _diverging(self) -> list[torch.Tensor]:
        return [*self._numerator, self._weight]

    def _on_exchanged(self) -> None:
        """All ranks have the same weights now, and each has push-weight 1 again."""
        self._divide()
        self.on_weights_replaced()

    def on_weights_replaced(self) -> None:
        torch._foreach_copy_(self._numerator, [p.detach() for p in self.parameters])
        self._weight.fill_(1.0)

    def extra_state(self) -> dict[str, Any]:
        return {"push_weight": float(self._weight)}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """The inverse of `extra_state`; the weights are loaded already."""
        self._weight.fill_(state["push_weight"])
        weights = [p.detach() * float(self._weight) for p in self.parameters]
        torch._foreach_copy_(self._numerator, weights)

    def _own_step(self) -> None:
        weights = [p.detach() for p in self.parameters]
        torch._foreach_copy_(weights, self._numerator)
        super()._own_step()
        torch._foreach_copy_(self._numerator, weights)
        self._divide()

    def _divide(self) -> None:
        weights = [p.detach() for p in self.parameters]
        torch._foreach_copy_(weights, self._numerator)
        if float(self._weight) != 1.0:
            torch._foreach_div_(weights, float(self._weight))


@dataclass(frozen=True)
class SGP(Averaging):
    """Pushes shares of its weights around an exponential graph.

    peers: how many ranks it pushes to in each step.
    overlap: how many steps late a push may arrive before its receiver waits for it; 0 is plain SGP.
    """

    peers: int = 1
    overlap: int = 0

    replica_type = PushReplica

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("sgp", "peers", self.peers)
        if not isinstance(self.overlap, int) or isinstance(self.overlap, bool) or self.overlap < 0:
            raise InvalidRules(f"sgp: overlap={self.overlap!r} must be a whole number of steps, 0 or more")

    def rules(self, world: int) -> Rules:
        if world > 1:
            push_peers(0, 0, world, self._peers(world))
        return self._sharing(world, Publishing(rows=3 + self.overlap))

    async def step(self, engine: Engine, work: Work) -> Ticket:
        iteration = engine.steps
        await engine.local_step(work)
        if engine.world == 1:
            return Ticket(engine.steps, iteration, False, "alone")
        peers = self._peers(engine.world)
        readers, notes = push_peers(engine.rank, iteration, engine.world, peers), (engine.replica.push_weight(),)
        await engine.weights.publish(iteration, engine.replica.published(), readers, notes)
        kept = self._kept(engine, iteration)
        owed: list[tuple[int, int]] = engine.state.setdefault("owed", [])
        owed += [push for push in self._pushes(engine, iteration) if push not in engine.state.get("beyond", ())]
        await self._receive(engine, iteration - self.overlap, kept, (engine.rank, iteration))
        return Ticket(engine.steps, iteration, True, "on time")

    async def meet(self, engine: Engine) -> None:
        """Receives everything that was pushed here, so that nothing is lost."""
        while self._is_owed(engine):
            await self._receive(engine, engine.ledger.published.furthest, kept=1.0)

    def _is_owed(self, engine: Engine) -> bool:
        """Whether any push to this rank is missing, including those that faster ranks made beyond its last step."""
        engine.look()
        published, owed = engine.ledger.published, engine.state.setdefault("owed", [])
        beyond: set[tuple[int, int]] = engine.state.setdefault("beyond", set())
        for iteration in range(engine.steps, published.furthest + 1):
            for push in self._pushes(engine, iteration):
                if published.of(*push) is not None and push not in beyond:
                    beyond.add(push)
                    owed.append(push)
        return bool(owed)

    def _pushes(self, engine: Engine, iteration: int) -> list[tuple[int, int]]:
        sources = push_sources(engine.rank, iteration, engine.world, self._peers(engine.world))
        return [(source, iteration) for source in sources]

    async def _receive(
        self, engine: Engine, at_the_latest: int, kept: float, mine: tuple[int, int] | None = None
    ) -> None:
        """Adds up the pushes that are there; waits for those up to iteration `at_the_latest`. `mine`: this rank's own
        publication, if it was just made and so is in host memory already."""
        owed = engine.state["owed"]
        for source, when in owed:
            if when <= at_the_latest:
                await engine.weights.gather(when, [source])
        engine.look()
        published = engine.ledger.published
        there = [(source, when) for source, when in owed if published.is_settled(source, when)]
        engine.state["owed"] = [item for item in owed if item not in there]
        oldest = min((when for _, when in engine.state["owed"]), default=engine.steps)
        shares, own = dict.fromkeys(there, self._share(engine.world)), None
        if mine is not None and published.of(*mine) is not None:
            shares[mine] = kept
        else:
            own = Own(kept, engine.replica.published(), (engine.replica.push_weight(),))
        engine.replica.become(await engine.weights.mix(shares, oldest - 1, own=own))

    def _kept(self, engine: Engine, iteration: int) -> float:
        """The share that a rank keeps of what it has published: its own, and those of peers that had left before. One
        that leaves later has received its push: kept as well, it would be there twice."""
        peers = push_peers(engine.rank, iteration, engine.world, self._peers(engine.world))
        return 1 - self._share(engine.world) * sum(
            engine.ledger.published.took_part(peer, engine.rank) for peer in peers
        )

    def _share(self, world: int) -> float:
        return 1 / (self._peers(world) + 1)

    def _peers(self, world: int) -> int:
        return min(self.peers, max(1, most_peers(world)))
