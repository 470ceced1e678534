"""What strategies that average weights have in common. Owns their replica, and why codecs are not for them."""

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

SNAPSHOT_EVERY = 64  #: iterations between snapshots, for ranks that are restarted


class SharingReplica(OptimizerReplica):
    """Publishes its weights; they are averaged when all ranks meet, with the model's buffers."""

    def _diverging(self) -> list[torch.Tensor]:
        return [p.detach() for p in self.parameters]


class RebasingReplica(SharingReplica):
    """Remembers the weights that its last steps began with, so that these can be put on top of other weights."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._base: list[torch.Tensor] | None = None

    def become(self, mean: Mixed) -> None:
        super().become(mean)
        self.remember()

    @torch.no_grad()
    def rebase(self, weights: Mixed) -> None:
        """As if its last steps had begun there, but for gradients that were computed before."""
        if self._base is not None and weights.tensors is not None:
            torch._foreach_sub_(self.published(), self._base)
            torch._foreach_copy_(self._base, list(self.staging.up(weights.tensors, self._base)))
            torch._foreach_add_(self.published(), self._base)

    def remember(self) -> None:
        """The next steps begin with what it has now."""
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
    """A strategy whose ranks have weights of their own. Momentum and other optimizer state stays with each rank.

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
        """Rules for published weights: nobody's rounds, everybody's rows."""
        return Rules(
            world, "solo", grace=grace, min_ranks=self.min_ranks, max_staleness=SNAPSHOT_EVERY, publishes=publishes
        )


def check_positive(owner: str, name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidRules(f"{owner}: {name}={value!r} must be a whole number, at least 1")
