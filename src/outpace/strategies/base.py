"""What a strategy is. Owns the interface; a strategy knows an engine only by `interface.Engine`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from outpace.codecs import codec
from outpace.errors import InvalidRules
from outpace.interface import Engine, Ticket, Work
from outpace.protocol.rules import OF_SUMS, Rules, check_name
from outpace.replica.replica import OptimizerReplica, RoundHook

RESTS = ("carry", "drop")


class After(Enum):
    """What comes after a micro-batch."""

    GO_ON = "go on"
    STOP = "stop"  #: the round is over; what was not begun comes in the next one
    AGAIN = "again"  #: likewise, and this micro-batch came too late: it is computed again


class Strategy(ABC):
    """An algorithm, written once, that runs on every engine.

    It is the same object for all ranks of a simulation: what it remembers of a rank is in `engine.state`.

    min_ranks: with fewer ranks left than this the run ends with `BelowQuorum`.
    codec: how gradients are coded on their way: "none", "bf16", "global-qsgd", "ok-topk".
    """

    sends_gradients = True  #: what is averaged are gradients, not weights
    codec: str = "none"  #: how gradients are coded on their way
    polls = False  #: whether it may end a round of micro-batches early
    follows_loss = False  #: whether it looks at the losses that steps were given
    replica_type: ClassVar[Callable[..., OptimizerReplica]] = OptimizerReplica  #: how a rank's optimizer takes part
    drops_rest = False  #: whether micro-batches that were not begun when a round ended early are thrown away

    @abstractmethod
    def rules(self, world: int) -> Rules:
        """The rules of its rounds in a world of so many ranks. Raises `InvalidRules` for what cannot work."""

    def replica(
        self, optimizer: Optimizer, model: torch.nn.Module | None, on_round: RoundHook | None = None
    ) -> OptimizerReplica:
        """A rank's part in it. Raises `InvalidRules` for an optimizer that the algorithm cannot use."""
        made = self.replica_type(optimizer, model, on_round, **self._replica_options())
        made.codec = codec(self.codec)
        return made

    def _rules(self, world: int, **chosen: Any) -> Rules:
        """With this strategy's options for all that rules have under the same name, and what it chooses itself."""
        options = {name: value for name, value in vars(self).items() if name in Rules.__dataclass_fields__}
        return Rules(world, **{**options, **chosen})

    def _replica_options(self) -> dict[str, Any]:
        return {}

    async def microbatch(self, engine: Engine, work: Work) -> After:
        """After each micro-batch of a round but the last; `work` is what is done since the round began."""
        return After.GO_ON

    @abstractmethod
    async def step(self, engine: Engine, work: Work) -> Ticket:
        """One rank's step: gives `work` away and brings the replica up to date."""

    async def meet(self, engine: Engine) -> None:
        """Before all ranks meet, or this one leaves: brings what only this rank has to the others."""
        return


@dataclass(frozen=True, kw_only=True)
class CountsMicrobatches(Strategy):
    """A round may end before all micro-batches are computed, and is divided by those that are counted.

    rest: micro-batches that were not begun are carried as data into the next round ("carry"), or dropped ("drop").
    normalise: divide by the "planned" micro-batches, so that the learning rate follows the work; or by the "finished".
    """

    rest: str = "carry"
    normalise: str = "planned"
    min_ranks: int | None = None
    codec: str = "none"

    polls = True

    def __post_init__(self) -> None:
        check_name("rest", self.rest, RESTS)
        if self.normalise not in OF_SUMS:
            raise InvalidRules(f"normalise={self.normalise!r} must be finished or planned: micro-batches are counted")

    @property
    def drops_rest(self) -> bool:  # type: ignore[override]
        return self.rest == "drop"
