"""Result slots and who is using them. A rank says which slot it holds before it reads or writes there.

A slot whose round is no longer kept may be given to another round while a stopped rank still holds it. So whoever
wants to write into a slot first says so, then looks at the log again, then at the others' holds: either it sees the
sleeper's hold and goes elsewhere, or the sleeper, once awake, sees in the log that its round is over.
"""

from __future__ import annotations

from collections.abc import Iterable

from outpace.engines.local.arena import Memory
from outpace.protocol.round import Round


def tag(round_: Round) -> int:
    """A number that is different for every attempt of every round, and never 0."""
    return (round_.number << 8 | round_.attempt & 0xFF) + 1


class Holds:
    """For each rank, and for the agent of a host: the slot it uses, and for which attempt of which round."""

    def __init__(self, memory: Memory, rank: int) -> None:
        layout = memory.layout
        self._rank = rank
        self._words = [memory.numbers(layout.hold(r), 2, "Q") for r in range(layout.world + 1)]

    def take(self, round_: Round) -> None:
        """Says that this rank uses the round's slot."""
        mine = self._words[self._rank]
        mine[0] = 0  # never show the old slot with the new round
        mine[1] = tag(round_)
        mine[0] = round_.slot + 1

    def release(self) -> None:
        """Says that this rank uses no slot."""
        self._words[self._rank][0] = 0

    def others_use(self, slot: int, mark: int, living: Iterable[int]) -> bool:
        """Whether another living rank still uses the slot for something else than `mark`."""
        words = self._words
        others = (words[rank] for rank in living if rank != self._rank)
        return any(word[0] == slot + 1 and word[1] != mark for word in others)
