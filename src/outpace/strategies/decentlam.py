"""DecentLaM: momentum that does not move the fixed point of gossip.

Yuan, Chen, Huang, Zhang, Pan, Xu, Yin: "DecentLaM: decentralized momentum SGD for large-batch deep training",
ICCV 2021.

    y_i = x_i - lr * g_i;    g~_i = (x_i - sum over j of W_ij y_j) / lr
    m_i = beta * m_i + g~_i;    x_i = x_i - lr * m_i

Momentum includes the pull of the neighbours. Waits as D-PSGD does: for its neighbours, in lock-step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from outpace.errors import InvalidRules
from outpace.interface import Mixed
from outpace.strategies.averaging import SharingReplica
from outpace.strategies.gossip import DPSGD


class DecentLaMReplica(SharingReplica):
    """Takes the learning rate, momentum and weight decay of an SGD optimizer, and does its step itself."""

    def __init__(self, inner: Optimizer, *args: Any) -> None:
        if type(inner) is not SGD or any(g["nesterov"] or g["dampening"] for g in inner.param_groups):
            raise InvalidRules(
                f"decentlam is a kind of momentum SGD and cannot wrap {type(inner).__name__}: give it "
                "torch.optim.SGD(lr=..., momentum=0.9) without nesterov and dampening, or use d-psgd"
            )
        super().__init__(inner, *args)
        self._y = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in self.parameters]
        self._momentum = [torch.zeros_like(y) for y in self._y]

    def published(self) -> list[torch.Tensor]:
        return self._y

    @torch.no_grad()
    def _own_step(self) -> None:
        """y = x - lr * g. A parameter without a gradient does not move."""
        for p, y, group in self._each():
            y.copy_(p)
            if p.grad is not None:
                y.sub_(p.grad + group["weight_decay"] * p if group["weight_decay"] else p.grad, alpha=group["lr"])

    @torch.no_grad()
    def become(self, mean: Mixed) -> None:
        super().become(mean)
        for (p, y, group), momentum in zip(self._each(), self._momentum, strict=True):
            momentum.mul_(group["momentum"]).add_((p - y) / group["lr"])
            p.sub_(momentum, alpha=group["lr"])

    def on_weights_replaced(self) -> None:
        torch._foreach_zero_(self._momentum)

    def extra_state(self) -> dict[str, Any]:
        return {"momentum": [m.clone() for m in self._momentum]}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        for mine, saved in zip(self._momentum, state["momentum"], strict=True):
            mine.copy_(saved)

    def _each(self) -> list[tuple[torch.nn.Parameter, torch.Tensor, dict[str, Any]]]:
        groups = {id(p): group for group in self.inner.param_groups for p in group["params"]}
        return [(p, y, groups[id(p)]) for p, y in zip(self.parameters, self._y, strict=True)]


@dataclass(frozen=True)
class DecentLaM(DPSGD):
    """D-PSGD with its own momentum; needs `torch.optim.SGD`, whose lr, momentum and weight_decay it takes."""

    replica_type = DecentLaMReplica

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order != "atc":
            raise InvalidRules("decentlam steps first and averages then; it has no order=awc")
