"""An outer optimizer on the change made by many local steps: DiLoCo, with all ranks, and NoLoCo, in random pairs.

DiLoCo: Douillard et al., "DiLoCo: distributed low-communication training of language models", arXiv 2311.08105.
NoLoCo: Kolehmainen et al., "NoLoCo: no-all-reduce low communication training", arXiv 2506.10911.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD

from outpace.errors import InvalidRules
from outpace.interface import Contents, Engine, Mixed, Tensors, Ticket, Work
from outpace.mixing.schedules import pairs
from outpace.protocol.rules import Publishing, Rules
from outpace.strategies.averaging import Averaging, SharingReplica, check_positive
from outpace.strategies.local_sgd import LocalSGD, WeightsReplica


class OuterReplica(WeightsReplica):
    """Contributes its change since the last average. An outer optimizer applies the mean change to the last average."""

    def __init__(self, *args: Any, lr: float, momentum: float) -> None:
        super().__init__(*args)
        self._slow = [torch.nn.Parameter(p.detach().clone()) for p in self.parameters]
        self.outer = SGD(self._slow, lr=lr, momentum=momentum, nesterov=momentum > 0)

    def deposit(self, row: Tensors, work: Work, onto: Tensors | None = None) -> tuple[bytes, bytes]:
        """slow - fast: a step against it leads from the slow weights to the fast ones."""
        self.check_unchanged()
        self.staging.down(row, self._delta())
        hyper = self._own_hyper()
        self.staging.landed()
        return b"\1" * len(self.parameters), hyper

    def _delta(self) -> Tensors:
        return torch._foreach_sub([s.detach() for s in self._slow], [p.detach() for p in self.parameters])

    def _take(self, weights: list[torch.Tensor], mean: list[torch.Tensor]) -> None:
        for slow, delta in zip(self._slow, mean, strict=True):
            slow.grad = delta.clone()
        self.outer.step()
        torch._foreach_copy_(weights, [s.detach() for s in self._slow])

    def capture(self) -> Contents:
        contents = super().capture()
        states = [self.outer.state[s] for s in self._slow]
        momentum = [state["momentum_buffer"] for state in states if "momentum_buffer" in state]
        return Contents([*contents.tensors, *momentum], {**contents.plain, "outer": len(momentum)}, contents.base)

    def _weights_to_begin_with(self) -> list[torch.Tensor]:
        """The slow weights, which all ranks share; local steps since the last average stay local."""
        return [s.detach() for s in self._slow]

    def on_weights_replaced(self) -> None:
        super().on_weights_replaced()
        torch._foreach_copy_([s.detach() for s in self._slow], [p.detach() for p in self.parameters])
        self.outer.state.clear()

    def _become(self, contents: Contents) -> None:
        super()._become(contents)
        saved = contents.tensors[len(contents.tensors) - contents.plain["outer"] :]
        for slow, momentum in zip(self._slow, saved, strict=False):
            self.outer.state[slow]["momentum_buffer"] = momentum.to(slow.device, copy=True)

    def extra_state(self) -> dict[str, Any]:
        return {"slow": [s.detach().clone() for s in self._slow], "outer": self.outer.state_dict()}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        torch._foreach_copy_([s.detach() for s in self._slow], state["slow"])
        self.outer.load_state_dict(state["outer"])


@dataclass(frozen=True)
class DiLoCo(LocalSGD):
    """An outer Nesterov step with the mean of all ranks' changes, every H steps.

        d = mean over i of (s - x_i);   m = mu * m + d;   s = s - lr * (d + mu * m);   x_i = s

    The inner optimizer's state stays with each rank. All ranks wait for each other, once in H steps.

    every: H, steps between two averages.
    outer_lr, outer_momentum: of the outer `torch.optim.SGD`; 1 and 0 make it local SGD.
    """

    every: int = 50
    outer_lr: float = 0.7
    outer_momentum: float = 0.9

    replica_type = OuterReplica

    def __post_init__(self) -> None:
        super().__post_init__()
        check_outer("diloco", self.outer_lr, self.outer_momentum)

    def _replica_options(self) -> dict[str, Any]:
        return {"lr": self.outer_lr, "momentum": self.outer_momentum}


class PairReplica(SharingReplica):
    def __init__(self, *args: Any, lr: float, momentum: float) -> None:
        super().__init__(*args)
        self._lr, self._mu = lr, momentum
        self._slow = [p.detach().clone() for p in self.parameters]
        self._momentum = [torch.zeros_like(s) for s in self._slow]

    @torch.no_grad()
    def published(self) -> list[torch.Tensor]:
        """Its change since the slow weights, and these."""
        return [*(p - s for p, s in zip(self.parameters, self._slow, strict=True)), *self._slow]

    def outer_step(self, mean: Mixed) -> None:
        both, half = self.staging.up(mean.tensors or (), [*self._slow, *self._slow]), len(self._slow)
        delta, slow = (
            [t.to(s.dtype) for t, s in zip(part, self._slow, strict=True)] for part in (both[:half], both[half:])
        )
        torch._foreach_mul_(self._momentum, self._mu)
        torch._foreach_add_(self._momentum, delta, alpha=self._lr)
        torch._foreach_add_(self._momentum, slow, alpha=self._lr)
        torch._foreach_sub_(self._momentum, self._slow, alpha=self._lr)
        torch._foreach_add_(self._slow, self._momentum)
        torch._foreach_copy_([p.detach() for p in self.parameters], self._slow)

    def _on_exchanged(self) -> None:
        self.on_weights_replaced()

    def _weights_to_begin_with(self) -> list[torch.Tensor]:
        """The slow weights; local steps since the last average stay local."""
        return self._slow

    def extra_state(self) -> dict[str, Any]:
        return {"slow": [s.clone() for s in self._slow], "momentum": [m.clone() for m in self._momentum]}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        torch._foreach_copy_(self._slow, state["slow"])
        torch._foreach_copy_(self._momentum, state["momentum"])

    def on_weights_replaced(self) -> None:
        torch._foreach_copy_(self._slow, [p.detach() for p in self.parameters])
        torch._foreach_zero_(self._momentum)


@dataclass(frozen=True)
class NoLoCo(Averaging):
    """Like DiLoCo, but in random pairs instead of with all ranks: a slow rank holds up only one partner.

        d_i = x_i - s_i;   m_i = mu * m_i + lr * mean d + lr * (mean s - s_i);   s_i = s_i + m_i;   x_i = s_i

    Means are over the pair, which is drawn from a shared seed. A synchronisation averages all ranks.

    every: steps between two averages.
    outer_lr, outer_momentum: lr and mu.
    """

    every: int = 50
    outer_lr: float = 0.7
    outer_momentum: float = 0.5
    seed: int = 0

    replica_type = PairReplica

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("noloco", "every", self.every)
        check_outer("noloco", self.outer_lr, self.outer_momentum)

    def rules(self, world: int) -> Rules:
        return self._sharing(world, Publishing())

    def _replica_options(self) -> dict[str, Any]:
        return {"lr": self.outer_lr, "momentum": self.outer_momentum}

    async def step(self, engine: Engine, work: Work) -> Ticket:
        await engine.local_step(work)
        if engine.steps % self.every:
            return Ticket(engine.steps, engine.steps - 1, False, "a step of its own")
        iteration = engine.steps - 1
        partner = pairs(iteration // self.every, engine.world, self.seed)[engine.rank]
        both = sorted({engine.rank, partner})
        others = [rank for rank in both if rank != engine.rank]
        await engine.weights.publish(iteration, engine.replica.published(), others)
        present = await engine.weights.gather(iteration, both)
        mean = await engine.weights.mix({(rank, iteration): 1 / len(present) for rank in present}, iteration)
        engine.replica.outer_step(mean)
        return Ticket(engine.steps, iteration, True, "on time")


def check_outer(owner: str, lr: float, momentum: float) -> None:
    if not lr > 0 or not 0 <= momentum < 1:
        raise InvalidRules(f"{owner}: outer_lr={lr!r} must be more than 0, and outer_momentum={momentum!r} in [0, 1)")
