"""Result slots and who is using them. A rank says which slot it holds before it reads or writes there.

A slot whose round is no longer kept may be given to another round while a stopped rank still holds it. So whoever
wants to write into a slot first says so, then looks at the log again, then at the others' holds: either it sees the
sleeper's hold and goes elsewhere, or the sleeper, once awake, sees in the log that its round is over.
"""

from __future__ import annotations

from collections.abc import Iterable

from outpace.engines.arena import order
from outpace.engines.arena.arena import Arena
from outpace.protocol.round import Round

_SLOT_BITS = 16  #: of a hold; the rest is the attempt's tag
_SLOT_MASK = (1 << _SLOT_BITS) - 1


def tag(round_: Round) -> int:
    """A number that is different for every attempt of every round, and never 0."""
    return (round_.number << 8 | round_.attempt & 0xFF) + 1


class Holds:
    """For each rank, and for the agent of a host: the slot it uses, and for which attempt of which round."""

    def __init__(self, memory: Arena, rank: int) -> None:
        layout = memory.layout
        self._rank = rank
        self._words = [memory.numbers(layout.hold(r), 1, "Q") for r in range(layout.world + 1)]

    def take(self, round_: Round) -> None:
        """Says that this rank uses the round's slot. What it reads from here on, the log first, it reads after that."""
        self._words[self._rank][0] = tag(round_) << _SLOT_BITS | round_.slot + 1  # in one word: never half of two
        order.before_looking()

    def release(self) -> None:
        """Says that this rank uses no slot: it has read and written there what it wanted to."""
        order.before_showing()
        self._words[self._rank][0] = 0

    def others_use(self, slot: int, mark: int, living: Iterable[int]) -> bool:
        """Whether another living rank still uses the slot for something else than `mark`."""
        order.before_looking()
        held = (self._words[rank][0] for rank in living if rank != self._rank)
        return any(word & _SLOT_MASK == slot + 1 and word >> _SLOT_BITS != mark for word in held)
