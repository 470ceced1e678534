"""Synchronisations: when all ranks with data left meet at one version. Owns what the last one decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Sync:
    """How many there were, and what the last one ended with."""

    def __init__(self) -> None:
        self.generation = 0  #: synchronisations completed
        self.version = 0  #: the version the last one ended at
        self.resumed = False  #: the last one began anew from a checkpoint
        self.ranks: tuple[int, ...] = ()  #: who took part in the last one
        self.steps = 0  #: local steps of the rank that had made the most; all go on counting from there
        self._steps = 0  # likewise, of those who are in the next one
        self._wanted = 0  # one more than the round to resume from; 0 for none
        self.source = 0  #: the rank whose checkpoint is the furthest, the lowest of several: all begin from its replica

    def enter(self, rank: int, resume: int, steps: int) -> None:
        """A rank that enters brings a checkpoint of round `resume - 1`, or none with 0, and has made so many steps."""
        if resume and resume >= self._wanted:
            self.source = rank if resume > self._wanted else min(rank, self.source)
            self._wanted = resume
        self._steps = max(self._steps, steps)

    def complete(self, round_: int, ranks: Sequence[int]) -> int:
        """All are here. Returns the round to go on with: a checkpoint's, if that is further."""
        self.resumed = self._wanted > 0
        self.version = max(round_, self._wanted - 1)
        self._wanted = 0
        self.steps = self._steps
        self.generation += 1
        self.ranks = tuple(sorted(ranks))
        return self.version

    def to_state(self) -> list[Any]:
        """Plain values for a snapshot."""
        counted = (self.steps, self._steps, self._wanted, self.source)
        return [self.generation, self.version, self.resumed, self.ranks, *counted]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> Sync:
        """The inverse of `to_state`."""
        sync = cls()
        sync.generation, sync.version, sync.resumed, ranks, *counted = state
        sync.ranks = tuple(ranks)
        sync.steps, sync._steps, sync._wanted, sync.source = counted
        return sync
