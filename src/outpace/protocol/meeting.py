"""Iterations in which all wait for all, and whose rows nobody writes again before all have read them.

Owns which iterations those are, and who has not read the last one. Like the ledger it belongs to, a pure fold.
"""

from __future__ import annotations

from typing import Any

from outpace.protocol.publications import NOTHING, Frozen


class Meeting:
    """The last one, while it is being read."""

    def __init__(self, every: int) -> None:
        self.number = NOTHING
        self.unread: set[int] = set()  #: who was in it and has not read it yet
        self._every = every  # so many iterations; 0: never
        self._rows: dict[int, int] = {}  # by rank

    def is_at(self, iteration: int) -> bool:
        """Whether all wait for all in this iteration."""
        return self._every > 0 and (iteration + 1) % self._every == 0

    def holds(self, rank: int, row: int) -> bool:
        """Whether a rank must not write this row of its own yet: somebody has to read it."""
        return bool(self.unread) and self._rows.get(rank) == row

    def begin(self, frozen: Frozen) -> None:
        """All are there. They have read the one before: they came to this one after it."""
        places = frozen.publications.values()
        self.number = frozen.number
        self.unread = {place.rank for place in places if place.iteration == frozen.number}
        self._rows = {place.rank: place.row for place in places}

    def has_read(self, rank: int) -> bool:
        """A rank has read it, or never will. True if it was the last one to."""
        if rank not in self.unread:
            return False
        self.unread.discard(rank)
        return not self.unread

    def to_state(self) -> list[Any]:
        """Plain values for a snapshot."""
        return [self.number, sorted(self.unread), sorted(self._rows.items())]

    @classmethod
    def from_state(cls, every: int, state: list[Any]) -> Meeting:
        """The inverse of `to_state`."""
        meeting = cls(every)
        meeting.number, unread, rows = state
        meeting.unread, meeting._rows = set(unread), dict(rows)
        return meeting
