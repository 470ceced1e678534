"""Where everything lies in the arena: pure arithmetic, equal on all ranks because their schemas are.

Regions are reserved for the worst case and touched only when needed: shared memory costs nothing until it is written.
"""

from __future__ import annotations

from dataclasses import dataclass

from outpace.protocol.ledger_view import snapshot_buffers

PAGE = 4096
HOLD_BYTES = 64  #: one cache line per rank, so that holds do not disturb each other
CHUNK_STATE_BYTES = 24  #: claimed tag, done tag, sum of squares
STATE_VECTORS = 8  #: room for this many optimizer state vectors in a snapshot
ROW_SHIFT_BYTES = 320  #: rows begin at different page offsets: with equal ones they would evict each other
NOTES_BYTES = 128  #: a count and fifteen numbers
_PLAIN_BYTES = 1 << 20


@dataclass
class ArenaLayout:
    """Offsets and sizes in bytes."""

    world: int
    slots: int
    vector_bytes: int
    chunks: int
    header_bytes: int
    meta_bytes: int
    buffer_bytes: int  #: one rank's model buffers
    state_bytes: int  #: one snapshot
    rows: int = 2  #: of each rank, for contributions
    published_rows: int = 0  #: of averaging strategies, all ranks' together
    published_bytes: int = 0  #: one of them, with its notes

    @classmethod
    def of(
        cls,
        world: int,
        slots: int,
        vector_bytes: int,
        chunks: int,
        tensors: int,
        hyper_bytes: int,
        buffer_bytes: int,
        extra_bytes: int,
        header_bytes: int,
        rows: int = 2,
        published_rows: int = 0,
        published_bytes: int = 0,
    ) -> ArenaLayout:
        """The arena for a model with this many tensors and hyper-parameters of this size."""
        plain = _PLAIN_BYTES + 1024 * tensors + 65536 * world
        return cls(
            world=world,
            slots=slots,
            vector_bytes=_pages(vector_bytes),
            chunks=chunks,
            header_bytes=_pages(header_bytes),
            meta_bytes=_pages(64 + tensors + 2 * hyper_bytes),
            buffer_bytes=_pages(buffer_bytes),
            rows=rows,
            published_rows=published_rows,
            published_bytes=_pages(published_bytes + NOTES_BYTES) if published_rows else 0,
            state_bytes=_pages((1 + STATE_VECTORS) * vector_bytes + buffer_bytes + extra_bytes + plain),
        )

    def __post_init__(self) -> None:
        self._row_bytes = self.vector_bytes + ROW_SHIFT_BYTES
        self._chunk_table_bytes = _pages(self.chunks * CHUNK_STATE_BYTES)
        self.control = self.header_bytes  #: the bell, then one hold for each rank and one for the host's agent
        self.latest = self.control + 8  #: hint at the latest snapshot, for ranks that cannot read the whole log
        self.agent = self.control + _pages(HOLD_BYTES * (2 + self.world))  #: see `engines.cluster.shared_page`
        self._metas = self.agent + PAGE
        self._chunk_states = self._metas + (self.rows * self.world + self.slots) * self.meta_bytes
        self._buffer_rows = self._chunk_states + self.slots * self._chunk_table_bytes
        self._rows = self._buffer_rows + 3 * self.world * self.buffer_bytes
        self._slots = self._rows + _pages(self.rows * self.world * self._row_bytes)
        self._states = self._slots + self.slots * self.vector_bytes

    def hold(self, rank: int) -> int:
        """Which slot a rank is using. The host's agent comes after the last rank."""
        return self.control + HOLD_BYTES * (1 + rank)

    def row_meta(self, rank: int, row: int) -> int:
        """A row's metadata: which parameters had gradients, and the hyper-parameters."""
        return self._metas + (self.rows * rank + row) * self.meta_bytes

    def slot_meta(self, slot: int) -> int:
        """A slot's metadata, likewise."""
        return self._metas + (self.rows * self.world + slot) * self.meta_bytes

    def chunk_states(self, slot: int) -> int:
        return self._chunk_states + slot * self._chunk_table_bytes

    def buffer_row(self, parity: int, rank: int) -> int:
        """A rank's model buffers: parities 0 and 1 for synchronisations in turn, 2 for the end."""
        return self._buffer_rows + (parity * self.world + rank) * self.buffer_bytes

    def row(self, rank: int, row: int) -> int:
        """Where a contribution lies. All first rows come first, because the second ones are rarely touched."""
        return self._rows + (row * self.world + rank) * self._row_bytes

    def slot(self, slot: int) -> int:
        return self._slots + slot * self.vector_bytes

    def state(self, buffer: int) -> int:
        return self._states + buffer * self.state_bytes

    def published(self, row: int) -> int:
        return self.state(snapshot_buffers(self.world)) + row * self.published_bytes

    def notes(self, row: int) -> int:
        """The notes of a published row, at its end: their count, then the numbers."""
        return self.published(row + 1) - NOTES_BYTES

    @property
    def total_bytes(self) -> int:
        return self.published(self.published_rows) + PAGE

    def usual_bytes(self, kept: int, state_vectors: int = 2) -> int:
        """Memory that training actually touches if no rank is stopped: P rows, R+2 slots, two snapshots."""
        if self.published_rows:
            return self._rows + self.published_rows * self.published_bytes + 2 * (1 + state_vectors) * self.vector_bytes
        vectors = self.world + kept + 2 + 2 * (1 + state_vectors)
        return self._rows + vectors * self.vector_bytes


def _pages(nbytes: int) -> int:
    return max(1, -(-nbytes // PAGE)) * PAGE
