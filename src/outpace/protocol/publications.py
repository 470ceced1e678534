"""What a rank has published, where it lies, and what was frozen of all. Decides nothing: `published` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

NOTHING = -1  #: an iteration before the first


class Publication(NamedTuple):
    """A rank's weights at some iteration: where they lie, and the how many-th of their rank they are."""

    rank: int
    iteration: int
    row: int
    serial: int


@dataclass(eq=False)
class Frozen:
    """What was current of each member when an iteration was frozen."""

    number: int
    publications: dict[int, Publication]
    stamp: int = -1  #: `Published.stamp` of that time, if it is known
    _among: dict[Sequence[int], list[Publication]] = field(default_factory=dict)  # found once for all members

    def has(self, rank: int, iteration: int) -> bool:
        """Whether this rank is in it with that iteration, and not with an older one."""
        mine = self.publications.get(rank)
        return mine is not None and mine.iteration == iteration

    def among(self, ranks: Sequence[int]) -> list[Publication]:
        """What it has of these ranks."""
        found = self._among.get(ranks)
        if found is None:
            there = self.publications
            found = self._among[ranks] = [there[rank] for rank in ranks if rank in there]
        return found

    def to_state(self) -> list[Any]:
        """Plain values for a snapshot."""
        return [self.number, list(self.publications.values())]

    @classmethod
    def from_state(cls, state: list[Any]) -> Frozen:
        """The inverse of `to_state`."""
        number, places = state
        return cls(number, {place[0]: Publication(*place) for place in places})


@dataclass
class Shelf:
    """One rank's rows."""

    spares: list[int]
    current: Publication | None = None
    generation: int = 0  #: changes of what is current, by its own rank or by another's swap
    count: int = 0  #: publications so far
    first: int = 0  #: the iteration it takes part from
    read: int = NOTHING  #: it needs nothing more that was published up to here
    mixed: int = NOTHING  #: with paths, its last publication that was frozen
    iteration: int = NOTHING  #: of its last publication
    life: int = 0  #: the incarnation that takes part, or did
    kept: dict[int, Publication] = field(default_factory=dict)  #: the last ones, by iteration
    stamp: int = 0  #: `Published.stamp` after its last publication
    stamp_before: int = 0  #: and after the one before

    def put(self, rank: int, iteration: int) -> None:
        """What was written into the next row is current."""
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

    def to_state(self) -> list[Any]:
        """Plain values for a snapshot."""
        kept = list(self.kept.values())
        numbers = [self.generation, self.count, self.first, self.read, self.mixed, self.iteration, self.life]
        return [self.spares, self.current, *numbers, kept]

    @classmethod
    def from_state(cls, state: list[Any]) -> Shelf:
        """The inverse of `to_state`."""
        spares, current, *numbers, kept = state
        shelf = cls(list(spares), None if current is None else Publication(*current), *numbers)
        shelf.kept = {place.iteration: place for place in (Publication(*place) for place in kept)}
        return shelf
