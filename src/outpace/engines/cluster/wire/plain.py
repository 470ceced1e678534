"""Sums that travel as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from outpace.engines.cluster.group import Group
from outpace.engines.cluster.wire.piece import Piece
from outpace.engines.cluster.wire.stages import Wire
from outpace.engines.sums import Terms


class PlainWire(Wire):
    """Host sums in the accumulator's dtype."""

    def stages(self, group: Group, piece: Piece, terms: Terms | None, contributors: int) -> Iterator[Any]:
        """One sum over hosts, in place."""
        self._add_up(piece, terms)
        yield group.add_up(piece.whole)
