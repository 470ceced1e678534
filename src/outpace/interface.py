"""What engines, strategies and replicas share: engines as strategies see them, and the values that pass between them.

Strategies are coroutines. On real machines a call blocks inside, so that a step simply runs to its end; in simulation
it suspends instead and many ranks take turns. A strategy cannot tell the difference.
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

Notes = tuple[float, ...]  #: a few numbers that go with published weights
Tensors = Sequence[torch.Tensor]


class Work(NamedTuple):
    """One rank's finished computing, about to be contributed."""

    samples: float = 1.0
    scale: float = 1.0  #: factor on the gradients, 1/m after m micro-batches
    planned: float = 1.0  #: samples it would have had if everything planned were finished
    share: float = 1.0  #: of the planned micro-batches that are finished
    loss: float | None = None  #: of the mini-batch, for strategies that follow the best
    step: int = 0  #: the number it is contributed under; the engine counts


class Ticket(NamedTuple):
    """A contribution that was given away."""

    step: int
    round: int  #: the round that was open when it arrived
    waits: bool  #: whether its rank is among those the round decides about
    reason: str
    taken: bool = True  #: whether it is with the others now; False if it came too late to be added to an earlier part


class Result(NamedTuple):
    """A round's averaged gradient, valid only while it is being applied."""

    round: Round
    gradients: Tensors
    present: bytes  #: per parameter: 1 if any contributor had a gradient, else 0
    hyper: bytes  #: hyper-parameters of the round, empty to keep the last ones
    mine: tuple[int, ...] = ()  #: steps of this rank that are in it
    refused: tuple[int, ...] = ()  #: steps of this rank that were refused, or are void with it


class Mixed(NamedTuple):
    """A weighted sum of published weights, in private memory, and of the notes that went with them."""

    tensors: Tensors | None = None  #: None: there was nobody else to average with, or there are no tensors at all
    notes: Notes = ()


class Own(NamedTuple):
    """What a rank adds of its own to a sum of publications."""

    weight: float
    tensors: Tensors
    notes: Notes = ()


@dataclass
class Contents:
    """What a replica puts into a snapshot: tensors in order, and plain values."""

    tensors: list[torch.Tensor]
    plain: dict[str, Any]
    base: dict[str, torch.Tensor] = field(default_factory=dict)  #: what is not trained, for ranks that begin

    @property
    def everything(self) -> list[torch.Tensor]:
        """The base first."""
        return [*self.base.values(), *self.tensors]

    def made_of(self, everything: Tensors) -> Contents:
        """The same with other tensors, in the order of `everything`."""
        base = dict(zip(self.base, everything, strict=False))
        return Contents(list(everything[len(base) :]), self.plain, base)


class Weights(Protocol):
    """Published weights: what averaging strategies publish for others, and how they read what others published."""

    async def publish(self, iteration: int, values: Tensors, readers: Collection[int] = (), notes: Notes = ()) -> bool:
        """Leaves values for others to read, with a few numbers. `readers` are sure to get them: a later publication
        waits for those who have not read this one. False if another rank's swap changed this rank's meanwhile."""

    async def gather(self, iteration: int, ranks: Iterable[int]) -> dict[int, Notes]:
        """Waits until each of these ranks has published the iteration or never will; the notes of those that have."""

    async def mix(
        self, shares: Mapping[tuple[int, int], float], read: int, together: bool = False, own: Own | None = None
    ) -> Mixed:
        """The weighted sum of publications, by rank and iteration, and of this rank's own.

        Says that nothing up to iteration `read` is needed any more. `together`: those ranks all make the same sum.
        """

    async def until_frozen(self, iteration: int) -> Frozen:
        """Waits until what is current at an iteration is frozen for all, and says what that was."""

    @property
    def open_iteration(self) -> int:
        """The first iteration that is not frozen, as far as this rank knows."""

    async def average(
        self, ranks: Sequence[int], frozen: Frozen | None, own: Tensors | None = None, of_others: bool = False
    ) -> Mixed | None:
        """The mean of what was frozen of these ranks, or is current of them now. `own` counts as one more; with
        `of_others` this rank's publication does not count.

        None if one of those ranks writes there again.
        """

    async def mix_frozen(self, frozen: Frozen, shares: Mapping[int, float]) -> Mixed | None:
        """The weighted sum of what was frozen. None if one of those ranks writes there again."""

    async def swap(self, peer: int) -> Mixed | None:
        """Makes both ranks' published weights the mean of both, at once. None if the peer has left."""

    async def changed_by_others(self) -> Mixed | None:
        """This rank's published weights as swaps of others have changed them. None if nothing is published."""

    async def withdraw(self) -> None:
        """Nobody can swap with this rank before it publishes again, unless somebody just did."""


class Engine(Protocol):
    """One rank's way to the others."""

    rank: int
    world: int
    rules: Rules
    placement: Placement | None  #: which rank is on which host; None: all are on one
    replica: Any  #: the strategy's own: it knows its verbs
    state: dict[str, Any]  #: what the strategy remembers on this rank
    steps: int  #: local steps of the inner optimizer
    began_s: float  #: when this rank began to compute what it contributes next, on its own clock

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
        """Takes in what the others have done meanwhile."""

    def tell(self, step: int, index: int, value: float) -> None:
        """Tells all ranks a number; they find it in `ledger.told`."""

    async def help(self) -> None:
        """Does what there is to be done for a sealed round, without waiting for it."""

    async def begin(self, work: Work, is_part: bool = False, alone: bool = False) -> Ticket:
        """Gives a contribution away. Never waits for anybody. One that is a part can be added to by the next; one that
        is `alone` is not added to parts before it, whose round is over."""

    async def finish_round(self, ticket: Ticket) -> Ticket:
        """Waits for the ticket's round, if it is one that its rank waits for, and applies every round decided."""

    async def catch_up(self) -> None:
        """Applies every decided round, in order."""

    async def local_step(self, work: Work) -> None:
        """Takes one step of the inner optimizer with this rank's own gradients."""
