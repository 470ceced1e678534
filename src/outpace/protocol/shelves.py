"""What each rank has published and where it lies, what was frozen of all, and who has not read that yet.

Owns one rank's rows and one frozen iteration. When an iteration is frozen is decided in `published.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outpace.protocol.state import Part

NOTHING = -1  #: an iteration before the first


class Publication(NamedTuple):
    rank: int
    iteration: int
    row: int
    serial: int  #: counts the publications of its rank, from 1


@dataclass(eq=False)
class Frozen:
    """What was current of each member when an iteration was frozen."""

    number: int
    publications: dict[int, Publication]
    stamp: int = -1  #: `Published.stamp` of that time
    _among: dict[Sequence[int], list[Publication]] = field(default_factory=dict, init=False)  # found once for all

    def has(self, rank: int, iteration: int) -> bool:
        """Whether this rank is in it with that iteration, and not with an older one."""
        mine = self.publications.get(rank)
        return mine is not None and mine.iteration == iteration

    def among(self, ranks: Sequence[int]) -> list[Publication]:
        found = self._among.get(ranks)
        if found is None:
            there = self.publications
            found = self._among[ranks] = [there[rank] for rank in ranks if rank in there]
        return found


@dataclass
class Shelf:
    spares: list[int]
    current: Publication | None = None
    generation: int = 0  #: changes of what is current, by its own rank or by another's swap
    count: int = 0  #: publications so far
    first: int = 0  #: the iteration it takes part from
    read: int = NOTHING  #: it needs nothing more that was published up to here
    mixed: int = NOTHING  #: with paths, its last publication that was frozen
    iteration: int = NOTHING  #: of its last publication
    life: int = 0  #: the incarnation that takes part, or did
    is_away: bool = False  #: it waits in another of its optimizers
    kept: dict[int, Publication] = field(default_factory=dict)  #: the last ones, by iteration
    stamp: int = 0  #: `Published.stamp` after its last publication
    stamp_before: int = 0  #: and after the one before

    def put(self, rank: int, iteration: int) -> None:
        row = self.spares.pop(0)
        self.clear()
        self.count += 1
        self.generation += 1
        self.iteration = max(self.iteration, iteration)
        rows = len(self.spares) + 1
        self.current = self.kept[iteration] = Publication(rank, iteration, row, self.count)
        while len(self.kept) > rows:
            del self.kept[next(iter(self.kept))]

    def clear(self) -> None:
        """Nothing is current; that row is written last."""
        if self.current is not None:
            self.spares.append(self.current.row)
            self.current = None


class Barrier(Part):
    """Iterations in which all wait for all, and whose rows nobody writes again before all have read them."""

    number: int
    unread: set[int]  #: who was in it and has not read it yet
    _rows: dict[int, int]  # by rank

    def __init__(self, every: int) -> None:
        self._every = every  # so many iterations; 0: never
        self.number, self.unread, self._rows = NOTHING, set(), {}

    def is_at(self, iteration: int) -> bool:
        return self._every > 0 and (iteration + 1) % self._every == 0

    def holds(self, rank: int, row: int) -> bool:
        """Whether a rank must not write this row of its own yet: somebody has to read it."""
        return bool(self.unread) and self._rows.get(rank) == row

    def begin(self, frozen: Frozen) -> None:
        """All have arrived. So all have read the one before."""
        places = frozen.publications.values()
        self.number = frozen.number
        self.unread = {place.rank for place in places if place.iteration == frozen.number}
        self._rows = {place.rank: place.row for place in places}

    def has_read(self, rank: int) -> bool:
        """A rank has read it, or never will. True if it was the last one."""
        if rank not in self.unread:
            return False
        self.unread.discard(rank)
        return not self.unread
