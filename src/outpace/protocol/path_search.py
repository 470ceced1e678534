"""Path search: decides when the ranks that wait should average, so that information spreads. Owns the growing subgraph.

Xiong, Yan, Wang, Li: "DSGD-AAU", arXiv 2306.06559. Ranks that have finished a step wait until an edge between two of
them connects parts of the graph that were not connected yet. Then all waiting ranks average. Once everything is
connected, the search starts over. So a fast rank waits for some neighbours, but never for a particular slow one.
"""

from __future__ import annotations

from collections.abc import Collection

from outpace.protocol.state import Part


class PathSearch(Part):
    """Which ranks wait, and which parts of the graph the averages so far have connected.

    >>> search = PathSearch(3, ((0, 1), (1, 2)))
    >>> search.arrive(0), search.arrive(2), search.arrive(1)  # 0 and 2 are no neighbours
    (False, False, True)
    >>> search.close()
    [0, 1, 2]
    """

    _waiting: set[int]
    _part: list[int]  # rank -> the part it belongs to

    def __init__(self, world: int, edges: tuple[tuple[int, int], ...]) -> None:
        self.edges = edges
        self._neighbours: dict[int, list[int]] = {rank: [] for rank in range(world if edges else 0)}
        for a, b in edges:
            self._neighbours[a].append(b)
            self._neighbours[b].append(a)
        self._waiting = set()
        self._part = list(range(len(self._neighbours)))

    def arrive(self, rank: int) -> bool:
        """This rank has finished a step and waits. True if that connects two parts."""
        self._waiting.add(rank)
        part = self._part
        return any(part[other] != part[rank] for other in self._neighbours[rank] if other in self._waiting)

    def everybody_waits(self, ranks: Collection[int]) -> bool:
        return bool(self._waiting) and all(rank in self._waiting for rank in ranks)

    def gone(self, rank: int) -> None:
        self._waiting.discard(rank)

    def close(self) -> list[int]:
        """Ends the wait of all waiting ranks, connects their parts, and returns them."""
        members = sorted(self._waiting)
        for rank in members:
            for other in self._neighbours[rank]:
                if other in self._waiting and self._part[other] != self._part[rank]:
                    old, new = self._part[other], self._part[rank]
                    self._part = [new if part == old else part for part in self._part]
        if len(set(self._part)) == 1:
            self._part = list(range(len(self._part)))
        self._waiting = set()
        return members
