"""The memory that ranks share: where tensors lie, how they get there and back. The other thing an engine is given.

The ledger decides what may be read or written when; a memory does as it is told. In simulated time, each call takes as
long as it really would, and the timing-only memory has no tensors at all.

    arena.memory.ArenaMemory        shared memory of one machine; its ranks or its agent reduce
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
    """One rank's view of the shared memory."""

    has_tensors: bool  #: False where only time is simulated

    # -- contributions and results

    def row(self, row: int) -> Tensors:
        """One of this rank's rows, as tensors shaped like the parameters."""

    async def deposited(self, row: int, described: tuple[bytes, bytes]) -> None:
        """Called when this rank's row is written. `described`: which parameters have gradients in it, and the
        hyper-parameters."""

    def copy_row(self, row: int) -> tuple[Any, bytes]:
        """A copy of one of this rank's rows with its description, for a checkpoint."""

    def put_row(self, row: int, copy: tuple[Any, bytes]) -> None:
        """Writes what `copy_row` returned."""

    def reduce(self, sealed: Round) -> Event | None:
        """Does this rank's share of reducing a sealed round. Returns the event to append then, if any."""

    async def hold(self, record: Round) -> None:
        """Keeps the result of a round from being overwritten while this rank reads it."""

    def result(self, record: Round) -> Result:
        """The result of a round that is held."""

    def release(self) -> None:
        """Ends the hold."""

    async def step_taken(self) -> None:
        """Called before a local step of this rank; takes its time where time is simulated."""

    # -- published weights

    async def publish(self, row: int, values: Tensors, notes: Notes, readers: Collection[int]) -> None:
        """Writes what this rank publishes into a row of its own."""

    def put(self, row: int, values: Tensors | None) -> None:
        """Writes into one of this rank's spare rows, without notes."""

    def notes(self, row: int) -> Notes:
        """The numbers that go with a published row."""

    async def mix(self, terms: Sequence[Term], together: bool, own: Own | None = None) -> Mixed:
        """The weighted sum of published rows. `together`: all their ranks compute the same sum."""

    async def mean(self, places: Sequence[Publication], ranks: Sequence[int], own: Tensors | None) -> Mixed:
        """The mean of these rows, which all of these ranks compute; `own` counts as one more row."""

    def copy(self, row: int) -> Mixed:
        """A private copy of a published row."""

    # -- snapshots, and what all ranks exchange in `synchronize` and `finish`

    async def save(self, buffer: int, contents: Contents, version: int, ledger: Ledger, position: int) -> None:
        """Writes a snapshot into a buffer that this rank has claimed."""

    def load(self, buffer: int) -> Contents | None:
        """A snapshot in place, or None if it is being overwritten. What was read is intact if the snapshot is still the
        latest afterwards."""

    def empty(self, buffer: int, keeps_ledger: bool, keeps_base: bool) -> None:
        """Frees the memory of a snapshot whose buffer this rank has claimed, except what is to be kept."""

    def tidy(self, number: int) -> None:
        """Called after a round was applied: frees rows and results that were needed only while a rank was late."""

    def leave(self, place: int, tensors: Tensors) -> None:
        """Leaves what this rank exchanges with all others."""

    def left(self, place: int, rank: int) -> Tensors:
        """What a rank has left at a place."""
