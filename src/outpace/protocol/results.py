"""The results that are kept, and the slots they lie in. Owns who may write which slot and what is given up when.

Must never decide what is in a round: it is told of the one being reduced, and of those that are complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from outpace.protocol.round import Round
from outpace.protocol.rules import Rules


class Results:
    """The last complete rounds, each in a slot of its own."""

    def __init__(self, rules: Rules) -> None:
        #: result slots: those kept, one being written, and one for each rank that may be stopped holding one
        self.slots = rules.max_staleness + rules.world + 1 + rules.world
        self.completed: dict[int, Round] = {}  #: the last rounds whose results are kept
        self._keep = rules.max_staleness
        self._world = rules.world

    def free_slots(self, reducing: Round | None) -> Iterator[int]:
        """Slots that hold no result that is kept, nor the one being made."""
        used = {r.slot for r in self.completed.values()}
        if reducing is not None:
            used.add(reducing.slot)
        return (slot for slot in range(self.slots) if slot not in used)

    def add(self, result: Round, covered: int) -> None:
        """Keeps the last R results, and older ones that the latest snapshot, of version `covered`, does not cover yet.

        Where late contributions count, each rank can complete one round before anybody has applied the first of them;
        given up, that one would be lost to all.
        """
        self.completed[result.number] = result
        for number in list(self.completed):
            kept = len(self.completed)
            if kept <= self._keep or (number >= covered and kept <= self._keep + self._world):
                return
            del self.completed[number]

    def begin_anew(self) -> None:
        """Another numbering begins: what is kept is of the old one."""
        self.completed = {}

    def to_state(self) -> list[dict[str, Any]]:
        """Plain values for a snapshot."""
        return [r.to_state() for r in self.completed.values()]

    @classmethod
    def from_state(cls, rules: Rules, state: Sequence[dict[str, Any]]) -> Results:
        """The inverse of `to_state`."""
        results = cls(rules)
        rounds = [Round.from_state(row) for row in state]
        results.completed = {r.number: r for r in rounds}
        return results
