"""Where ranks leave for a meeting what is local while they train: model buffers, and weights that are averaged.

Rows are written before the event that shows them. Two parities in turn: a rank can be at most one meeting ahead of
one that still reads, because the next meeting needs both. Shapes are those of the start, at every meeting.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outpace.engines.arena.arena import Memory
from outpace.vector import packed, place


class BufferRows:
    """What every rank has left, in the arena."""

    def __init__(self, memory: Memory, like: Sequence[torch.Tensor]) -> None:
        self._memory = memory
        self._like = [torch.empty_like(tensor, device="meta") for tensor in like]
        self._offsets, _ = packed(like)

    def write(self, parity: int, rank: int, left: Sequence[torch.Tensor]) -> None:
        """Leaves what this rank has for the meeting."""
        for mine, shared in zip(left, self.read(parity, rank), strict=True):
            shared.copy_(mine)

    def read(self, parity: int, rank: int) -> list[torch.Tensor]:
        """What a rank has left, in place."""
        layout = self._memory.layout
        region = self._memory.region(layout.buffer_row(parity, rank), layout.buffer_bytes)
        return [place(region, offset, like) for offset, like in zip(self._offsets, self._like, strict=True)]
