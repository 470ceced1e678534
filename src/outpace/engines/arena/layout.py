"""Where everything lies in the arena, and the mapped memory itself.

The layout is pure arithmetic, equal on all ranks because their schemas are. Regions are reserved for the worst case and
touched only when needed: shared memory that nobody wrote costs nothing.

The file can be taken out of this process's memory at once, whoever still looks at it. Python unmaps a file only when
nobody has a view of it, and keeps the file open until then: traces of an exception, or a cycle that the garbage
collector has not come to, would keep an arena alive. So Python maps nothing but room for addresses; the file is put in
there, and empty memory in its place when it is given back.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
from dataclasses import dataclass
from typing import Any

import torch

from outpace.engines.arena import kernel
from outpace.errors import ArenaFull

PAGE = 4096
HOLD_BYTES = 64  #: one cache line a rank, so that holds do not disturb each other
CHUNK_STATE_BYTES = 24  #: claimed tag, done tag, sum of squares
STATE_VECTORS = 8  #: room for this many optimizer state vectors in a snapshot
ROW_SHIFT_BYTES = 320  #: rows begin at different places of a page: a cache has few ways for equal ones, read together
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
        """The arena for a model with so many tensors and hyper-parameters of such a size."""
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
        self.latest = self.control + 8  #: hint at the latest snapshot, for who cannot read the log from its beginning
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
        """What goes with a row: which parameters had gradients, and the hyper-parameters."""
        return self._metas + (self.rows * rank + row) * self.meta_bytes

    def slot_meta(self, slot: int) -> int:
        """What goes with a slot, likewise."""
        return self._metas + (self.rows * self.world + slot) * self.meta_bytes

    def chunk_states(self, slot: int) -> int:
        return self._chunk_states + slot * self._chunk_table_bytes

    def buffer_row(self, parity: int, rank: int) -> int:
        """A rank's model buffers: parities 0 and 1 for synchronisations in turn, 2 for the end."""
        return self._buffer_rows + (parity * self.world + rank) * self.buffer_bytes

    def row(self, rank: int, row: int) -> int:
        """Where a contribution lies. All first rows come first: the second ones are seldom touched."""
        return self._rows + (row * self.world + rank) * self._row_bytes

    def slot(self, slot: int) -> int:
        return self._slots + slot * self.vector_bytes

    def state(self, buffer: int) -> int:
        return self._states + buffer * self.state_bytes

    def published(self, row: int) -> int:
        return self.state(self.world + 1) + row * self.published_bytes

    def notes(self, row: int) -> int:
        """The numbers that go with a published row, at its end: how many, and they themselves."""
        return self.published(row + 1) - NOTES_BYTES

    @property
    def total_bytes(self) -> int:
        return self.published(self.published_rows) + PAGE

    def usual_bytes(self, kept: int, state_vectors: int = 2) -> int:
        """Memory that training really touches when nobody is stopped: P rows, R+2 slots, two snapshots."""
        if self.published_rows:
            return self._rows + self.published_rows * self.published_bytes + 2 * (1 + state_vectors) * self.vector_bytes
        vectors = self.world + kept + 2 + 2 * (1 + state_vectors)
        return self._rows + vectors * self.vector_bytes


def _pages(nbytes: int) -> int:
    return max(1, -(-nbytes // PAGE)) * PAGE


_FIXED, _NO_RESERVE = 0x10, 0x4000  # MAP_FIXED and MAP_NORESERVE of Linux, which Python does not name
_EMPTY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE


def mapped(fd: int, nbytes: int) -> mmap.mmap:
    """The file's first bytes, shared with all who map it. Raises OSError, and ValueError if there are not so many."""
    if os.fstat(fd).st_size < nbytes:
        raise ValueError(f"the arena should have {nbytes} bytes, and has {os.fstat(fd).st_size}")
    if sys.platform.startswith("linux"):
        try:
            room = mmap.mmap(-1, nbytes, _EMPTY)
        except OSError:
            pass  # a kernel that lends no more addresses than it has memory; what is shared is not counted there
        else:
            _put(room, mmap.MAP_SHARED, fd)
            return room
    return mmap.mmap(fd, nbytes)


def give_back(room: mmap.mmap) -> None:
    """Takes the file out. Views of it are views of zeros from then on."""
    if sys.platform.startswith("linux"):
        _put(room, _EMPTY, -1)


def _put(room: mmap.mmap, flags: int, fd: int) -> None:
    call = ctypes.CDLL(None, use_errno=True)["mmap"]
    call.restype = ctypes.c_void_p
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_int64)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    if call(address, len(room), mmap.PROT_READ | mmap.PROT_WRITE, flags | _FIXED, fd, 0) != address:
        error = ctypes.get_errno()
        raise OSError(error, f"the arena could not be mapped (errno {error})")


_POPULATE_READ = 22  # MADV_POPULATE_READ, which Python does not name; what is shared may be written then, too


class Arena:
    def __init__(self, fd: int, layout: ArenaLayout) -> None:
        kernel.take_part()
        self.layout = layout
        self._map = mapped(fd, layout.total_bytes)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.raw = memoryview(self._map)
        self._touched: set[int] = set()
        self.word = ctypes.c_uint32.from_buffer(self._map, layout.control)

    def close(self) -> None:
        """Gives the memory back at once. Whoever still has a view of it sees zeros."""
        with contextlib.suppress(OSError):  # then it is given back when nobody has a view of it any more
            give_back(self._map)

    def region(self, offset: int, nbytes: int) -> torch.Tensor:
        return self.bytes[offset : offset + nbytes]

    def touch(self, offset: int, nbytes: int) -> None:
        """Brings what is about to be used into this process's page table, at once instead of page by page."""
        if offset not in self._touched:
            self._touched.add(offset)
            self._populate(offset, nbytes)

    def touch_ahead(self, rank: int) -> None:
        """What this rank writes in a first round of all: its row, and its part of the first slot. Before it joins: all
        ranks do it together, and while others still start."""
        layout = self.layout
        self.touch(layout.row(rank, 0), layout.vector_bytes)
        part = layout.vector_bytes // layout.world
        self._populate(layout.slot(0) + rank * part, part)

    def _populate(self, offset: int, nbytes: int) -> None:
        start = offset - offset % mmap.PAGESIZE
        with contextlib.suppress(OSError, ValueError):  # before Linux 5.14, or elsewhere
            self._map.madvise(_POPULATE_READ, start, offset + nbytes - start)

    def punch(self, offset: int, nbytes: int) -> None:
        """Gives back the pages that lie there as a whole: they read as zeros for everybody, and cost nothing."""
        self._touched.discard(offset)
        start, end = _pages(offset), (offset + nbytes) // PAGE * PAGE
        if end > start and hasattr(mmap, "MADV_REMOVE"):
            with contextlib.suppress(OSError, ValueError):  # a file system that cannot
                self._map.madvise(mmap.MADV_REMOVE, start, end - start)

    def numbers(self, offset: int, count: int, code: str) -> memoryview[Any]:
        """Typed access to `count` numbers of 8 bytes."""
        return self.raw[offset : offset + 8 * count].cast(code)  # type: ignore[call-overload,no-any-return]

    def write_meta(self, offset: int, blob: bytes) -> None:
        """Stores what goes with a row or a slot. Refuses what would run into its neighbour."""
        if 8 + len(blob) > self.layout.meta_bytes:
            raise ArenaFull(
                f"the optimizer's hyper-parameters take {len(blob)} bytes and have grown since the start, when "
                f"{self.layout.meta_bytes} were reserved; keep what grows out of param_groups"
            )
        self.raw[offset + 8 : offset + 8 + len(blob)] = blob
        self.raw[offset : offset + 8] = len(blob).to_bytes(8, "little")

    def read_meta(self, offset: int) -> bytes:
        start = offset + 8
        return self._map[start : start + int.from_bytes(self._map[offset:start], "little")]
