"""What a strategy may ask of an engine, and what an engine asks of a replica. Owns the interface, no behaviour.

Strategies are coroutines. The local engine blocks inside a call, so that a step simply runs to its end; a simulated
engine suspends the coroutine instead and interleaves many ranks. A strategy cannot tell the difference.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from outpace.protocol.ledger import Ledger
from outpace.protocol.round import Round
from outpace.protocol.rules import Rules
from outpace.protocol.shelves import Frozen

T = TypeVar("T")
Notes = tuple[float, ...]  #: a few numbers that go with published weights


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
    gradients: Sequence[torch.Tensor]
    present: bytes  #: per parameter: 1 if any contributor had a gradient, else 0
    hyper: bytes  #: hyper-parameters of the round, empty to keep the last ones
    mine: tuple[int, ...] = ()  #: steps of this rank that are in it
    refused: tuple[int, ...] = ()  #: steps of this rank that were refused, or are void with it


@dataclass
class Contents:
    """What a replica puts into a snapshot: tensors in order, and plain values."""

    tensors: list[torch.Tensor]
    plain: dict[str, Any]


class Replica(Protocol):
    """One rank's model and optimizer, as an engine sees it."""

    version: int
    rules: Rules | None  #: of the training it takes part in; the engine says so
    is_torn: bool  #: interrupted while it changed: neither the old version nor the new one

    def deposit(
        self, row: Sequence[torch.Tensor], work: Work, onto: Sequence[torch.Tensor] | None = None
    ) -> tuple[bytes, bytes]:
        """Writes the gradients, added to those of an earlier row if one is given; returns which parameters had one,
        and the hyper-parameters."""

    def apply(self, result: Result) -> None:
        """Takes one optimizer step with a round's result."""

    def local_step(self, work: Work) -> None:
        """Takes one optimizer step with this rank's own gradients."""

    def prepare(self) -> None:
        """It is about to be published."""

    def has_published(self) -> None:
        """It is published now."""

    def published(self) -> list[torch.Tensor]:
        """What averaging strategies publish, and what an average is written into."""

    def notes(self) -> Notes:
        """Numbers that are averaged along with it."""

    def averaged(self, notes: Notes) -> None:
        """`published` holds an average now, of the notes too: takes it over."""

    def rebase(self, weights: Sequence[torch.Tensor]) -> None:
        """Puts what was done since the last average on top of other weights."""

    def give_up(self, step: int) -> bool:
        """A contribution was not taken in. Whether it is kept here, to go with a later one."""

    def keep_only(self, steps: Collection[int]) -> None:
        """Rounds were passed over: of this rank's contributions, only these can still be applied."""

    def capture(self) -> Contents:
        """What another rank needs to become this replica."""

    def adopt(self, contents: Contents, version: int, is_beginning: bool) -> None:
        """Becomes what was captured, of that version; where this rank begins, with all that lay beside it."""

    def begin_anew(self) -> None:
        """Its weights were loaded: what a strategy derives from them goes on from there."""

    def meeting(self) -> list[torch.Tensor]:
        """What is local while training and averaged when all meet: model buffers, and what a strategy keeps apart."""

    def meet(self, rows: Sequence[Sequence[torch.Tensor]]) -> None:
        """Takes over what the ranks of a meeting left, the lowest first."""


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

    @property
    def version(self) -> int:
        """Rounds this rank has applied."""

    memory: dict[str, Any]  #: what the strategy remembers on this rank
    steps: int  #: local steps of the inner optimizer
    began_s: float  #: when this rank began to compute what it contributes next, on its own clock

    def look(self) -> None:
        """Takes in what the others have done meanwhile."""

    def tell(self, step: int, index: int, value: float) -> None:
        """Tells all ranks a number; it is in `ledger.told` of whoever reads on."""

    async def help(self) -> None:
        """Does what there is to be done for a sealed round, without waiting for it."""

    async def begin(self, work: Work, is_part: bool = False, alone: bool = False) -> Ticket:
        """Gives a contribution away. Never waits for anybody. One that is a part can be added to by the next; one that
        is `alone` is not added to parts before it, whose round is over."""

    async def result(self, ticket: Ticket) -> None:
        """Waits until the round the ticket waits for is decided; returns at once for one that does not wait."""

    async def catch_up(self) -> None:
        """Applies every decided round, in order."""

    async def local_step(self, work: Work) -> None:
        """Takes one step of the inner optimizer with this rank's own gradients."""

    async def publish(self, iteration: int, readers: Collection[int] = (), notes: Notes = ()) -> bool:
        """Leaves this rank's weights for others to read, with a few numbers. `readers` are sure to get them: a later
        publication waits for those who have not read this one. False if they were changed by a swap meanwhile."""

    async def gather(self, iteration: int, ranks: Iterable[int]) -> dict[int, Notes]:
        """Waits until each of these ranks has published the iteration, or will not; who has, with its notes."""

    async def keep(self) -> None:
        """As `mix`, of this rank's own weights alone: there is nobody to average with."""

    async def mix(
        self, weights: Mapping[tuple[int, int], float], read: int, together: bool = False, own: float = 0.0
    ) -> None:
        """Makes this rank's weights the weighted sum of publications, by rank and iteration, and of its own weights.

        Says that nothing up to iteration `read` is needed any more. `together`: those ranks all make the same sum.
        """

    async def until_frozen(self, iteration: int) -> Frozen:
        """Waits until what is current at an iteration is frozen for all, and says what that was."""

    @property
    def open_iteration(self) -> int:
        """The first iteration that is not frozen, as far as this rank knows."""

    async def average(self, ranks: Sequence[int], frozen: Frozen | None, with_own: bool = False) -> bool:
        """Makes this rank's weights the mean of what was frozen of these ranks, or is current of them now. With
        `with_own` its weights as they are count, too, beside what it had published.

        False, and nothing changed, if one of those ranks writes there again.
        """

    async def mix_frozen(self, frozen: Frozen, weights: Mapping[int, float], own: float = 0.0) -> bool:
        """As `mix`, of what was frozen, and of this rank's own weights. False, and nothing changed, if one of those
        ranks writes there again."""

    async def swap(self, peer: int) -> bool:
        """Makes this rank's and the peer's weights the mean of both, at once. False if the peer has left."""

    async def rebase(self) -> None:
        """Puts this rank's last steps on top of its weights as swaps of others have changed them."""

    async def withdraw(self) -> None:
        """As `rebase`, and from then on nobody can swap with this rank before it publishes again."""

    def now_s(self) -> float:
        """Seconds on this rank's clock."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a strategy's coroutine on an engine that blocks."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("this engine's calls must not suspend")
