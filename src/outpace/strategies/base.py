"""The interface of a strategy. A strategy knows engines only by `interface.Engine`."""

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
    """What to do after a micro-batch."""

    GO_ON = "go on"
    STOP = "stop"  #: the round is over; micro-batches not yet begun go to the next one
    AGAIN = "again"  #: likewise, and this micro-batch came too late: compute it again


class Strategy(ABC):
    """An algorithm, written once, that runs on every engine.

    All ranks of a simulation share one strategy object, so anything it remembers about a rank goes to `engine.state`.

    min_ranks: with fewer ranks left than this, the run ends with `BelowQuorum`.
    codec: compression of gradients: "none", "bf16", "global-qsgd", "ok-topk".
    """

    sends_gradients = True  #: it averages gradients, not weights
    codec: str = "none"  #: compression of gradients
    polls = False  #: whether it may end a round of micro-batches early
    follows_loss = False  #: whether it uses the losses given to steps
    replica_type: ClassVar[Callable[..., OptimizerReplica]] = OptimizerReplica  #: how a rank's optimizer takes part
    drops_rest = False  #: whether it throws away the micro-batches left when a round ends early

    @abstractmethod
    def rules(self, world: int) -> Rules:
        """The rules of its rounds among `world` ranks. Raises `InvalidRules` for what cannot work."""

    def replica(
        self, optimizer: Optimizer, model: torch.nn.Module | None, on_round: RoundHook | None = None
    ) -> OptimizerReplica:
        """Wraps a rank's optimizer. Raises `InvalidRules` for one that the algorithm cannot use."""
        made = self.replica_type(optimizer, model, on_round, **self._replica_options())
        made.codec = codec(self.codec)
        return made

    def _rules(self, world: int, **chosen: Any) -> Rules:
        """Rules from this strategy's options of the same names, overridden by what is given here."""
        options = {name: value for name, value in vars(self).items() if name in Rules.__dataclass_fields__}
        return Rules(world, **{**options, **chosen})

    def _replica_options(self) -> dict[str, Any]:
        return {}

    async def microbatch(self, engine: Engine, work: Work) -> After:
        """Called after each micro-batch of a round but the last; `work` is what was done since the round began."""
        return After.GO_ON

    @abstractmethod
    async def step(self, engine: Engine, work: Work) -> Ticket:
        """One rank's step: contributes `work` and brings the replica up to date."""

    async def meet(self, engine: Engine) -> None:
        """Called before all ranks synchronise or this one leaves: hands over what only this rank has."""
        return


@dataclass(frozen=True, kw_only=True)
class CountsMicrobatches(Strategy):
    """Base of strategies whose rounds may end before all micro-batches are computed.

    rest: micro-batches not yet begun go to the next round ("carry"), or are dropped ("drop").
    normalise: divide the sum by the "planned" micro-batches, so that a step is as large as the work in it, or by the
        "finished" ones.
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
