"""What all wires have in common: collectives of several pieces under way at once, in one order on all hosts.

Operations of a group are matched by their order alone, so that it may depend on nothing but the order of the calls: a
piece goes on to its next collective when another one begins, never because something has arrived.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from outpace.engines.cluster.group import Group
from outpace.engines.cluster.wire.piece import Piece
from outpace.engines.sums import RowSums, Terms


class Wire(ABC):
    """One way to add up pieces over hosts. Begun for several pieces before the first is ended, on all hosts alike."""

    collectives = 1  #: for each piece, one after the other

    def __init__(self, sums: RowSums) -> None:
        self._sums = sums
        self._under_way: list[UnderWay] = []

    @abstractmethod
    def stages(self, group: Group, piece: Piece, terms: Terms | None, contributors: int) -> Iterator[Any]:
        """Begins one collective after the other and yields each, to go on when it has ended.

        Sums this host's rows (None: it has none) of a round of so many contributors. What a collective works on is
        new or the piece's own: after a failure an old one may still write there.
        """

    def begin(self, group: Group, piece: Piece, terms: Terms | None, contributors: int) -> UnderWay:
        """Begins to send. Waits for collectives of earlier pieces, if others of theirs depend on them."""
        earlier = [its for its in self._under_way if its.group is group]  # what others left behind is void
        begun = UnderWay(group, self.stages(group, piece, terms, contributors), self.collectives)
        for its in earlier:
            its.go_on()
        self._under_way = [*earlier, begun]
        return begun

    def end(self, group: Group, piece: Piece, begun: UnderWay) -> None:
        """Waits, and leaves the sum over all hosts in the piece."""
        begun.finish()
        self._under_way.remove(begun)

    def _add_up(self, piece: Piece, terms: Terms | None) -> None:
        """Makes a piece the sum of this host's rows, as they are."""
        if terms is None:
            piece.whole.zero_()
            return
        for index, chunk in piece.numbered():
            self._sums.add_up(index, terms, chunk)


class UnderWay:
    """A piece on its way."""

    def __init__(self, group: Group, stages: Iterator[Any], collectives: int) -> None:
        self.group = group
        self._stages, self._left = stages, collectives
        self._work = next(stages)

    def go_on(self) -> None:
        """Waits for a collective that is not the last, and begins the next."""
        if self._left > 1:
            self._end_one()

    def finish(self) -> None:
        """To the end."""
        while self._left:
            self._end_one()

    def _end_one(self) -> None:
        self.group.end(self._work)
        self._left -= 1
        self._work = next(self._stages, None)
