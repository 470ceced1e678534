"""What a strategy may ask of an engine, and what an engine asks of a replica. Owns the interface, no behaviour.

Strategies are coroutines. The local engine blocks inside a call, so that a step simply runs to its end; a simulated
engine suspends the coroutine instead and interleaves many ranks. A strategy cannot tell the difference.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from outpace.protocol.ledger import Ledger
from outpace.protocol.round import Round
from outpace.protocol.rules import Rules

T = TypeVar("T")


class Work(NamedTuple):
    """One rank's finished computing, about to be contributed."""

    samples: float = 1.0
    scale: float = 1.0  #: factor on the gradients, 1/m after m micro-batches


class Ticket(NamedTuple):
    """A contribution that was given away."""

    step: int
    round: int  #: the round that was open when it arrived
    waits: bool  #: whether its rank is among those the round decides about
    reason: str


class Result(NamedTuple):
    """A round's averaged gradient, valid only while it is being applied."""

    round: Round
    gradients: Sequence[torch.Tensor]
    present: bytes  #: per parameter: 1 if any contributor had a gradient, else 0
    hyper: bytes  #: hyper-parameters of the round, empty to keep the last ones


@dataclass
class Contents:
    """What a replica puts into a snapshot: tensors in order, and plain values."""

    tensors: list[torch.Tensor]
    plain: dict[str, Any]


class Replica(Protocol):
    """One rank's model and optimizer, as an engine sees it."""

    version: int

    def deposit(self, row: Sequence[torch.Tensor], work: Work) -> tuple[bytes, bytes]:
        """Writes the gradients; returns which parameters had one, and the hyper-parameters."""

    def apply(self, result: Result) -> None:
        """Takes one optimizer step with a round's result."""

    def capture(self) -> Contents:
        """What another rank needs to become this replica."""

    def adopt(self, contents: Contents) -> None:
        """Becomes what was captured."""

    def buffers(self) -> list[torch.Tensor]:
        """Model state that is local while training and averaged at `synchronize`."""


class Engine(Protocol):
    """One rank's way to the others."""

    rank: int
    world: int
    rules: Rules

    @property
    def ledger(self) -> Ledger:
        """What this rank knows of all rounds."""

    @property
    def waited_s(self) -> float:
        """Seconds this rank has waited for others."""

    async def begin(self, work: Work) -> Ticket:
        """Gives a contribution away. Never waits for anybody."""

    async def result(self, ticket: Ticket) -> None:
        """Waits until the round the ticket waits for is decided; returns at once for one that does not wait."""

    async def catch_up(self) -> None:
        """Applies every decided round, in order."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a strategy's coroutine on an engine that blocks."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("this engine's calls must not suspend")
