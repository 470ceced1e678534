"""Model buffers (BatchNorm statistics and the like): local while training, averaged when all ranks meet.

Rows are written before the event that shows them. Two parities in turn: a rank can be at most one meeting ahead of
one that still reads, because the next meeting needs both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from outpace.engines.local.arena import Memory
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
        """Mean of what floats; maximum of what counts (`num_batches_tracked`). Same bits on every rank."""
        rows = [self._views(parity, rank, buffers) for rank in sorted(ranks)]
        for index, mine in enumerate(buffers):
            if mine.is_floating_point():
                wide = torch.zeros(mine.shape, dtype=torch.float64)
                for row in rows:
                    wide += row[index]
                mine.copy_(wide / len(rows))
            elif not mine.is_complex():
                most = rows[0][index].clone()
                for row in rows[1:]:
                    most = torch.maximum(most, row[index])
                mine.copy_(most)

    def _views(self, parity: int, rank: int, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        layout = self._memory.layout
        region = self._memory.region(layout.buffer_row(parity, rank), layout.buffer_bytes)
        return [place(region, offset, t) for offset, t in zip(self._offsets, like, strict=True)]
