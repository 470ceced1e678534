"""The seat of one rank: its lives, one after the other. Owns what is known of them; decides nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outpace.job.supervised import LIFE, Report
from outpace.launching.child import Child
from outpace.launching.places import cause
from outpace.launching.restarts import Restarts


@dataclass(frozen=True)
class Ending:
    """How a life ended."""

    rank: int
    code: int
    words: str  #: the end of its standard error
    lived_s: float
    joined: int  #: trainings that this life took part in
    finished: int  #: of these, ended by `finish()`
    left: int  #: of these, open when the script ended
    error: str  #: the name of an error that no new start can change, or nothing

    @property
    def is_good(self) -> bool:
        """Whether the script came to its end, with every training it began."""
        return self.code == 0 and self.finished + self.left >= self.joined

    def __str__(self) -> str:
        in_training = ", in the middle of its training" if self.code == 0 else ""
        return f"rank {self.rank} ended with {cause(self.code)}{in_training}"


class Seat:
    """A rank that is to come to its end, in as many lives as that takes."""

    def __init__(self, rank: int, store: Any, restarts: Restarts) -> None:
        self.rank, self.restarts = rank, restarts
        self.child: Child | None = None
        self.due_s: float | None = None  #: when it is to be started
        self.has_raised = False  #: a life of it ended with an exit code other than 0
        self._store = store
        self._life = 0

    @property
    def lives(self) -> bool:
        """Whether there is a process."""
        return self.child is not None

    def start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        """Begins the next life."""
        self._life += 1
        self.due_s = None
        self.child = Child(command, {**environment, LIFE: str(self._life)})

    def count(self, what: str) -> int:
        """What the current or last life told so far."""
        return Report(self._store, self.rank, self._life).count(what)

    def end(self) -> Ending:
        """Ends the current life, if it has not ended, and everything around it."""
        assert self.child is not None
        code, words = self.child.end()
        lived_s = time.monotonic() - self.child.began_s
        self.child = None
        self.has_raised = self.has_raised or code > 0
        report = Report(self._store, self.rank, self._life)
        counts = report.count("joined"), report.count("finished"), report.count("left")
        return Ending(self.rank, code, words, lived_s, *counts, report.error)
