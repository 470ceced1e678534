"""How a round's host sums become one sum on the wire. Owns what is sent; the codecs own what it means.

Plain sums travel as they are.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from outpace.engines.cluster.group import Group
from outpace.engines.sums import RowSums, Terms


class Piece:
    """Some chunks of the vector that travel together, in private memory."""

    def __init__(self, first: int, chunks: list[torch.Tensor], whole: torch.Tensor) -> None:
        self.first = first  #: index of the first chunk
        self.chunks = chunks  #: of the accumulator's dtype, one after the other in `whole`
        self.whole = whole

    def numbered(self) -> list[tuple[int, torch.Tensor]]:
        """The chunks with their indices."""
        return list(enumerate(self.chunks, self.first))


class Wire(Protocol):
    """One way to add up pieces over hosts. Begun for several pieces before the first is ended, on all hosts alike."""

    def begin(self, group: Group, piece: Piece, terms: Terms | None, contributors: int) -> Any:
        """Sums this host's rows (None: it has none) of a round of so many contributors, and begins to send."""

    def end(self, group: Group, piece: Piece, begun: Any) -> None:
        """Waits, and leaves the sum over all hosts in the piece."""


class PlainWire:
    """Host sums in the accumulator's dtype."""

    def __init__(self, sums: RowSums) -> None:
        self._sums = sums

    def begin(self, group: Group, piece: Piece, terms: Terms | None, contributors: int) -> Any:
        """One sum over hosts for the whole piece."""
        if terms is None:
            piece.whole.zero_()
        else:
            for index, chunk in piece.numbered():
                self._sums.add_up(index, terms, chunk)
        return group.add_up(piece.whole)

    def end(self, group: Group, piece: Piece, begun: Any) -> None:
        """It is summed in place."""
        group.end(begun)


def wire_of(sums: RowSums) -> Wire:
    """The wire of a run's codec."""
    return PlainWire(sums)
