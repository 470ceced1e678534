"""Snapshots in the arena: a replica and the ledger, for ranks that lag, join or are restarted.

No rank asks another for anything: a rank that has just applied a round writes, and those in need read. A reader reads
in place, then looks at the log: if another snapshot is the latest by then, what it read may be torn.
"""

from __future__ import annotations

import json
from typing import Any
from zlib import crc32

import torch

from outpace.engines.arena.kernel import Arena
from outpace.errors import ArenaFull
from outpace.interface import Contents
from outpace.vector import packed, place

_HEAD_BYTES = 16  # length and checksum of the plain part


class SnapshotStore:
    def __init__(self, memory: Arena) -> None:
        self._memory = memory
        self._hint = memory.numbers(memory.layout.latest, 1, "Q")

    def write(self, buffer: int, contents: Contents, ledger: dict[str, Any], position: int) -> None:
        """The base comes before the weights, which are freed sooner."""
        tensors = contents.everything
        specs = [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in tensors]
        said = {"plain": contents.plain, "ledger": ledger, "position": position}
        body = json.dumps({"tensors": specs, "base": list(contents.base), **said}).encode()
        offsets, end = packed(tensors, _HEAD_BYTES + len(body))
        room = self._memory.layout.state_bytes
        if end > room:
            raise ArenaFull(
                f"a snapshot of this optimizer takes {end} bytes and the arena has {room} for one; the optimizer "
                "keeps more state per parameter than outpace makes room for"
            )
        start = self._memory.layout.state(buffer)
        self._memory.touch(start, end)
        region = self._memory.region(start, room)
        for tensor, offset in zip(tensors, offsets, strict=True):
            place(region, offset, tensor).copy_(tensor)
        self._memory.raw[start + _HEAD_BYTES : start + _HEAD_BYTES + len(body)] = body
        head = len(body).to_bytes(8, "little") + crc32(body).to_bytes(8, "little")
        self._memory.raw[start : start + _HEAD_BYTES] = head

    def announce(self, buffer: int) -> None:
        self._hint[0] = buffer + 1

    def hinted(self) -> int | None:
        return int(self._hint[0]) - 1 if self._hint[0] else None

    def read_plain(self, buffer: int) -> dict[str, Any] | None:
        """The plain part, or None if it is being overwritten."""
        start = self._memory.layout.state(buffer)
        head = bytes(self._memory.raw[start : start + _HEAD_BYTES])
        length, check = int.from_bytes(head[:8], "little"), int.from_bytes(head[8:], "little")
        if length > self._memory.layout.state_bytes:
            return None
        body = bytes(self._memory.raw[start + _HEAD_BYTES : start + _HEAD_BYTES + length])
        return json.loads(body) if length and crc32(body) == check else None

    def size(self, buffer: int) -> int:
        """How many bytes a buffer's snapshot takes, 0 if it is being overwritten."""
        plain = self.read_plain(buffer)
        return 0 if plain is None else self._places(buffer, plain)[2]

    def empty(self, buffer: int, keeps_plain: bool, keeps_base: bool = False) -> None:
        """Frees a buffer's memory, except the plain part or the base if these are to be kept."""
        start, kept = self._memory.layout.state(buffer), 0
        plain = self.read_plain(buffer) if keeps_plain or keeps_base else None
        if plain is not None:
            _, offsets, end = self._places(buffer, plain)
            kept = [*offsets, end][len(plain["base"]) if keeps_base else 0]
        self._memory.punch(start + kept, self._memory.layout.state_bytes - kept)

    def forget(self, buffer: int) -> None:
        start = self._memory.layout.state(buffer)
        self._memory.raw[start : start + _HEAD_BYTES] = bytes(_HEAD_BYTES)

    def _places(self, buffer: int, plain: dict[str, Any]) -> tuple[list[torch.Tensor], list[int], int]:
        """(tensors without memory, the offset of each, end). The end is 0 if the plain part makes no sense."""
        like = [torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for dtype, shape in plain["tensors"]]
        start = self._memory.layout.state(buffer)
        length = int.from_bytes(self._memory.raw[start : start + 8], "little")
        offsets, end = packed(like, _HEAD_BYTES + length)
        return like, offsets, end if end <= self._memory.layout.state_bytes else 0

    def read(self, buffer: int) -> Contents | None:
        """A buffer's replica in place, or None if it is being overwritten."""
        plain = self.read_plain(buffer)
        if plain is None:
            return None
        like, offsets, end = self._places(buffer, plain)
        if not end:
            return None
        region = self._memory.region(self._memory.layout.state(buffer), end)
        tensors = [place(region, offset, tensor) for tensor, offset in zip(like, offsets, strict=True)]
        base = dict(zip(plain["base"], tensors, strict=False))
        return Contents(tensors[len(base) :], plain["plain"], base)
