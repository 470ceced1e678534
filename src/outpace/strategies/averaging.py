"""The base of strategies that average weights, and their replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from outpace.errors import InvalidRules
from outpace.interface import Mixed
from outpace.protocol.rules import Publishing, Rules
from outpace.replica.replica import OptimizerReplica
from outpace.strategies.base import Strategy

SNAPSHOT_EVERY = 64  #: iterations between snapshots, which restarted ranks need


class SharingReplica(OptimizerReplica):
    """Publishes its weights; a synchronisation averages them over all ranks, as it does the model's buffers."""

    def _diverging(self) -> list[torch.Tensor]:
        return [p.detach() for p in self.parameters]


class RebasingReplica(SharingReplica):
    """Remembers the weights before its last steps, so that these steps can be moved on top of other weights."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._base: list[torch.Tensor] | None = None

    def become(self, mean: Mixed) -> None:
        super().become(mean)
        self.remember()

    @torch.no_grad()
    def rebase(self, weights: Mixed) -> None:
        """Moves its last steps on top of these weights: as if they had begun there, but with the same gradients."""
        if self._base is not None and weights.tensors is not None:
            torch._foreach_sub_(self.published(), self._base)
            torch._foreach_copy_(self._base, list(self.staging.up(weights.tensors, self._base)))
            torch._foreach_add_(self.published(), self._base)

    def remember(self) -> None:
        """Its next steps begin from the current weights."""
        if self._base is None:
            self._base = [torch.empty_like(w) for w in self.published()]
        torch._foreach_copy_(self._base, self.published())

    def on_weights_replaced(self) -> None:
        super().on_weights_replaced()
        self._base = None

    def _own_step(self) -> None:
        if self._base is None:
            self.remember()
        super()._own_step()

    def _on_exchanged(self) -> None:
        self.remember()


@dataclass(frozen=True, kw_only=True)
class Averaging(Strategy):
    """A strategy whose ranks have weights of their own. Momentum and other optimizer state stay local to each rank.

    codec: only "none": codecs are for gradients.
    """

    codec: str = "none"
    min_ranks: int = 1

    sends_gradients = False
    replica_type: ClassVar[Callable[..., OptimizerReplica]] = SharingReplica

    def __post_init__(self) -> None:
        if self.codec != "none":
            raise InvalidRules(
                f"codec={self.codec!r} is for gradients, and {type(self).__name__} averages weights: coded weights "
                "would lose the small differences that training consists of. Leave it out, or use a gradient strategy"
            )

    def _sharing(self, world: int, publishes: Publishing, grace: str | float = 0.0) -> Rules:
        """Rules for published weights: rows that everybody reads, and no rounds."""
        return Rules(
            world, "solo", grace=grace, min_ranks=self.min_ranks, max_staleness=SNAPSHOT_EVERY, publishes=publishes
        )


def check_positive(owner: str, name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidRules(f"{owner}: {name}={value!r} must be a whole number, at least 1")
