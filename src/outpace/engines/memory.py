"""The memory that ranks share: where tensors lie, how they get there and back. The other thing an engine is given.

What may be read or written when is decided by the ledger; a memory does as it is told. Where time is simulated, each
of these calls takes the time it would take, and the timing-only one has no tensors at all.

    arena.memory.ArenaMemory        shared memory of one machine, whose ranks reduce rounds themselves or have an agent
    virtual.memory.TensorMemory     tensors of this process, in simulated time
    virtual.memory.TimingMemory     no tensors, only time
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from outpace.interface import Contents, Mixed, Notes, Own, Result, Tensors
from outpace.protocol.events import Event
from outpace.protocol.ledger import Ledger
from outpace.protocol.published import Publication
from outpace.protocol.round import Round

Term = tuple[Publication, float]


class Memory(Protocol):
    """One rank's view of it."""

    has_tensors: bool  #: False where only time is simulated

    # -- contributions and results

    def row(self, row: int) -> Tensors:
        """One of this rank's rows, as tensors shaped like the parameters."""

    async def deposited(self, row: int, described: tuple[bytes, bytes]) -> None:
        """This rank's row is written; which parameters have gradients in it, and the hyper-parameters."""

    def copy_row(self, row: int) -> tuple[Any, bytes]:
        """A row of this rank's with what goes with it, for a checkpoint."""

    def put_row(self, row: int, copy: tuple[Any, bytes]) -> None:
        """Writes what `copy_row` gave."""

    def reduce(self, sealed: Round) -> Event | None:
        """Does what this rank can do for a sealed round. The event that is due then, if any."""

    async def hold(self, record: Round) -> None:
        """From here on the result of a round is not overwritten while this rank reads it."""

    def result(self, record: Round) -> Result:
        """The result of a round that is held."""

    def release(self) -> None:
        """This rank reads no result any more."""

    async def step_taken(self) -> None:
        """This rank has taken a step of its own."""

    # -- published weights

    async def publish(self, row: int, values: Tensors, notes: Notes, readers: Collection[int]) -> None:
        """Writes what this rank publishes into a row of its own."""

    def put(self, row: int, values: Tensors | None) -> None:
        """Writes into a spare row of this rank's, without notes."""

    def notes(self, row: int) -> Notes:
        """The numbers that go with a published row."""

    async def mix(self, terms: Sequence[Term], together: bool, own: Own | None = None) -> Mixed:
        """The weighted sum of published rows. `together`: all their ranks make the same sum."""

    async def mean(self, places: Sequence[Publication], ranks: Sequence[int], own: Tensors | None) -> Mixed:
        """The mean of these rows, as all of these ranks make it; `own` counts as one more row."""

    def copy(self, row: int) -> Mixed:
        """A private copy of a published row."""

    # -- snapshots, and what all ranks exchange when they meet

    async def save(self, buffer: int, contents: Contents, version: int, ledger: Ledger, position: int) -> None:
        """Writes a snapshot into a buffer that this rank has claimed."""

    def load(self, buffer: int) -> Contents | None:
        """A snapshot where it lies, or None if it is being overwritten. What was read is whole if it is the latest
        still."""

    def empty(self, buffer: int, keeps_ledger: bool, keeps_base: bool) -> None:
        """Gives back the memory of a snapshot whose buffer this rank has claimed, except what is to be kept."""

    def tidy(self, number: int) -> None:
        """After a round was applied: gives back rows and results that were of use only while somebody was late."""

    def leave(self, place: int, tensors: Tensors) -> None:
        """Leaves what this rank brings to a meeting."""

    def left(self, place: int, rank: int) -> Tensors:
        """What a rank has left there."""
