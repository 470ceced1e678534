"""Model buffers (BatchNorm statistics and the like): local while training, averaged when all ranks meet.

Rows are written before the event that shows them. Two parities in turn: a rank can be at most one meeting ahead of
one that still reads, because the next meeting needs both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from outpace.engines.local.arena import Memory
from outpace.engines.sums import average_buffers
from outpace.vector import packed, place


class BufferRows:
    """Every rank's buffers in the arena."""

    def __init__(self, memory: Memory, like: Sequence[torch.Tensor]) -> None:
        self._memory = memory
        self._offsets, _ = packed(like)

    def write(self, parity: int, rank: int, buffers: Sequence[torch.Tensor]) -> None:
        """Leaves this rank's buffers for the meeting."""
        for mine, shared in zip(buffers, self._views(parity, rank, buffers), strict=True):
            shared.copy_(mine)

    def average(self, parity: int, ranks: Iterable[int], buffers: Sequence[torch.Tensor]) -> None:
        """Makes `buffers` the mean of what these ranks left."""
        average_buffers(buffers, [self._views(parity, rank, buffers) for rank in sorted(ranks)])

    def _views(self, parity: int, rank: int, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        layout = self._memory.layout
        region = self._memory.region(layout.buffer_row(parity, rank), layout.buffer_bytes)
        return [place(region, offset, t) for offset, t in zip(self._offsets, like, strict=True)]
