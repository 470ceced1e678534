"""Some chunks of the vector that travel together."""

from __future__ import annotations

import torch


class Piece:
    """Chunks one after the other in private memory. An old group may still write into it: it is not used again."""

    def __init__(self, first: int, chunks: list[torch.Tensor], whole: torch.Tensor) -> None:
        self.first = first  #: index of the first chunk
        self.chunks = chunks  #: of the accumulator's dtype, one after the other in `whole`
        self.whole = whole

    def numbered(self) -> list[tuple[int, torch.Tensor]]:
        """The chunks with their indices."""
        return list(enumerate(self.chunks, self.first))
