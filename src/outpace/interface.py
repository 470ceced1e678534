"""What engines, strategies and replicas share: the engine as a strategy sees it, and the values passed between them.

Strategies are coroutines. On real machines a call blocks inside, so a step simply runs to its end. In simulation it
suspends instead, and many ranks take turns. A strategy cannot tell the difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from outpace.mixing.schedules import Placement
from outpace.protocol.ledger import Ledger
from outpace.protocol.published import Frozen
from outpace.protocol.round import Round
from outpace.protocol.rules import Rules

Notes = tuple[float, ...]  #: a few numbers attached to published weights
Tensors = Sequence[torch.Tensor]


class Work(NamedTuple):
    """What one rank has computed and is about to contribute."""

    samples: float = 1.0
    scale: float = 1.0  #: factor on the gradients, 1/m after m micro-batches
    planned: float = 1.0  #: samples if everything planned had been finished
    share: float = 1.0  #: of the planned micro-batches, how much is finished
    loss: float | None = None  #: of the mini-batch, for strategies that follow the best rank
    step: int = 0  #: sequence number of the contribution; the engine sets it


class Ticket(NamedTuple):
    """The receipt for a contribution."""

    step: int
    round: int  #: the round that was open when it arrived
    waits: bool  #: whether its rank waits for that round
    reason: str
    taken: bool = True  #: False if it was not accepted: too late to be added to an earlier part


class Result(NamedTuple):
    """A round's averaged gradient, valid only while it is being applied."""

    round: Round
    gradients: Tensors
    present: bytes  #: for each parameter, 1 if any contributor had a gradient, else 0
    hyper: bytes  #: hyper-parameters of the round; empty to keep the last ones
    mine: tuple[int, ...] = ()  #: this rank's steps that are in it
    refused: tuple[int, ...] = ()  #: this rank's steps that were refused, or lost because the round is void


class Mixed(NamedTuple):
    """A weighted sum of published weights and of their notes, in private memory."""

    tensors: Tensors | None = None  #: None if nobody else was there to average with, or if only time is simulated
    notes: Notes = ()


class Own(NamedTuple):
    """A rank's own term in a sum of publications."""

    weight: float
    tensors: Tensors
    notes: Notes = ()


@dataclass
class Contents:
    """The contents of a snapshot: tensors in order, and plain values."""

    tensors: list[torch.Tensor]
    plain: dict[str, Any]
    base: dict[str, torch.Tensor] = field(default_factory=dict)  #: untrained tensors, for ranks that start

    @property
    def everything(self) -> list[torch.Tensor]:
        """All tensors, the base first."""
        return [*self.base.values(), *self.tensors]

    def made_of(self, everything: Tensors) -> Contents:
        """A copy with these tensors in place of `everything`."""
        base = dict(zip(self.base, everything, strict=False))
        return Contents(list(everything[len(base) :]), self.plain, base)


class Weights(Protocol):
    """Published weights: how averaging strategies publish their own and read other ranks'."""

    async def publish(self, iteration: int, values: Tensors, readers: Collection[int] = (), notes: Notes = ()) -> bool:
        """Leaves values and notes for others to read. `readers` are guaranteed to get them: the row is not overwritten
        before they have read it. False if another rank's swap changed this rank's weights meanwhile."""

    async def gather(self, iteration: int, ranks: Iterable[int]) -> dict[int, Notes]:
        """Waits until each of these ranks has published the iteration, or never will. Returns the notes by rank."""

    async def mix(
        self, shares: Mapping[tuple[int, int], float], read: int, together: bool = False, own: Own | None = None
    ) -> Mixed:
        """The weighted sum of publications, given by rank and iteration, and of this rank's own values.

        Declares everything up to iteration `read` as read. `together`: all those ranks compute the same sum.
        """

    async def until_frozen(self, iteration: int) -> Frozen:
        """Waits until the iteration is frozen for all ranks, and returns what it holds."""

    @property
    def open_iteration(self) -> int:
        """The first iteration that is not frozen, as far as this rank knows."""

    async def average(
        self, ranks: Sequence[int], frozen: Frozen | None, own: Tensors | None = None, of_others: bool = False
    ) -> Mixed | None:
        """The mean of these ranks' frozen publications, or of their current ones. `own` counts as one more term; with
        `of_others` this rank's publication is left out.

        None if one of the rows was overwritten meanwhile.
        """

    async def mix_frozen(self, frozen: Frozen, shares: Mapping[int, float]) -> Mixed | None:
        """The weighted sum of frozen publications. None if one of the rows was overwritten meanwhile."""

    async def swap(self, peer: int) -> Mixed | None:
        """Atomically replaces both ranks' published weights by the mean of both. None if the peer has left."""

    async def changed_by_others(self) -> Mixed | None:
        """This rank's published weights, with the swaps of others applied. None if nothing is published."""

    async def withdraw(self) -> None:
        """Takes the published weights back: nobody can swap with this rank until it publishes again. No effect if
        somebody just did."""


class Engine(Protocol):
    """What a strategy can do with the other ranks."""

    rank: int
    world: int
    rules: Rules
    placement: Placement | None  #: which rank is on which host; None if all are on one
    replica: Any  #: of the strategy's own `replica_type`
    state: dict[str, Any]  #: what the strategy remembers on this rank
    steps: int  #: local steps of the inner optimizer
    began_s: float  #: when this rank began to compute its next contribution, on its own clock

    @property
    def weights(self) -> Weights:
        """Published weights."""

    @property
    def ledger(self) -> Ledger:
        """What this rank knows of all rounds."""

    @property
    def version(self) -> int:
        """Rounds this rank has applied."""

    def now_s(self) -> float:
        """Seconds on this rank's clock."""

    def look(self) -> None:
        """Reads what the others have done since."""

    def tell(self, step: int, index: int, value: float) -> None:
        """Sends a number to all ranks, who find it in `ledger.told`."""

    async def help(self) -> None:
        """Helps to reduce a sealed round, without waiting for it."""

    async def begin(self, work: Work, is_part: bool = False, alone: bool = False) -> Ticket:
        """Contributes, without waiting for anybody. With `is_part`, the next contribution may be added to this one.
        With `alone`, this one is not added to earlier parts, whose round is over."""

    async def finish_round(self, ticket: Ticket) -> Ticket:
        """Waits for the ticket's round if `ticket.waits`, then applies every decided round."""

    async def catch_up(self) -> None:
        """Applies every decided round, in order."""

    async def local_step(self, work: Work) -> None:
        """Takes one step of the inner optimizer with this rank's own gradients."""
