"""The results that are kept, and the slots they lie in. Owns who may write which slot and what is given up when.

Must never decide what is in a round: it is told of the one being reduced, and of those that are complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from outpace.protocol.round import Round
from outpace.protocol.rules import Rules


class Results:
    """The last complete rounds, each in a slot of its own."""

    def __init__(self, rules: Rules) -> None:
        #: result slots: those kept, one being written, and one for each rank that may be stopped holding one
        self.slots = rules.max_staleness + rules.world + 1 + rules.world
        self.completed: dict[int, Round] = {}  #: the last rounds whose results are kept
        self._places: dict[int, int] = {}  # slots of older ones, kept, too, whose records are not known here
        self._keep = rules.max_staleness
        self._world = rules.world

    def free_slots(self, reducing: Round | None) -> Iterator[int]:
        """Slots that hold no result that is kept, nor the one being made."""
        used = {r.slot for r in self.completed.values()}.union(self._places.values())
        if reducing is not None:
            used.add(reducing.slot)
        return (slot for slot in range(self.slots) if slot not in used)

    def add(self, result: Round, covered: int) -> None:
        """Keeps the last R results, and older ones that the latest snapshot, of version `covered`, does not cover yet.

        Where late contributions count, each rank can complete one round before anybody has applied the first of them;
        given up, that one would be lost to all.
        """
        self.completed[result.number] = result
        kept = len(self._places) + len(self.completed)
        while kept > self._keep:
            oldest = self._places or self.completed
            number = next(iter(oldest))
            if number >= covered and kept <= self._keep + self._world:
                return
            del oldest[number]
            kept -= 1

    @property
    def oldest(self) -> int:
        """The first round whose result is kept, 0 if none is. The same whether its record is known here or not."""
        return next(iter(self._places or self.completed), 0)

    def begin_anew(self) -> None:
        """Another numbering begins: what is kept is of the old one."""
        self.completed, self._places = {}, {}

    def to_state(self, covered: int) -> dict[str, Any]:
        """Plain values for a snapshot of version `covered`: nobody who begins from it needs the rounds before."""
        rounds = self.completed.values()
        places = [*self._places.items(), *((r.number, r.slot) for r in rounds if r.number < covered)]
        return {"places": places, "records": [r.to_state() for r in rounds if r.number >= covered]}

    @classmethod
    def from_state(cls, rules: Rules, state: dict[str, Any]) -> Results:
        """The inverse of `to_state`."""
        results = cls(rules)
        results._places = dict(state["places"])
        results.completed = {r.number: r for r in map(Round.from_state, state["records"])}
        return results
