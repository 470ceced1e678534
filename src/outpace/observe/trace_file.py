"""One rank's trace file. Owns finding what is readable in it, whatever happened to it, and saying what is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from outpace.observe.trace import Pause, Step, Tally, TracedRound
from outpace.observe.trace_events import LINE_BYTES, Cut, Event, Finished, Foreign, Lost, event_of
from outpace.observe.trace_life import Life
from outpace.observe.trace_lines import FORMAT
from outpace.observe.trace_values import Nonsense, printable

SAID = 3  #: lines of a file that are complained about; the rest is counted


class TraceFile:
    """What one file holds: the lives of one rank, one after the other."""

    def __init__(self, path: Path) -> None:
        self.lives: list[Life] = []
        self._name = printable(path.name, 100)
        self._numbered = re.fullmatch(r"rank-(\d{1,7})\.jsonl", path.name, re.ASCII)
        self._ignored: list[str] = []
        self._more = self._lost = 0
        self._is_foreign = False
        self._notes: list[str] = []
        try:
            with path.open("rb") as file:
                for number, line in _lines(file):
                    self._take(number, line)
        except OSError as error:
            self._note(f"cannot be read: {error.strerror}")

    @property
    def rank(self) -> int | None:
        """From a header, or from the file's name."""
        if self.latest is not None:
            return self.latest.rank
        return int(self._numbered[1]) if self._numbered else None

    @property
    def latest(self) -> Life | None:
        """The last life that has a header."""
        return next((life for life in reversed(self.lives) if life.world is not None), None)

    def skipped(self, why: str = "") -> list[str]:
        """What was left out of it, in words; `why` if all of it was."""
        words = [*self._ignored, *self._notes]
        if self._more:
            words.append(f"{self._more} more lines are ignored")
        if self._lost:
            words.append(f"{self._lost} events were lost because the disk was slow")
        return [f"{self._name}: {said}" for said in (*words, why) if said]

    def _take(self, number: int, line: bytes | None) -> None:
        """Believes what can be believed of a line."""
        if line == b"":
            return
        try:
            self._sort_in(event_of(line, self.rank or 0))
        except Nonsense as error:
            if self._is_foreign:
                pass
            elif len(self._ignored) < SAID:
                self._ignored.append(f"line {number} {error}, ignored")
            else:
                self._more += 1

    def _sort_in(self, event: Event) -> None:
        if isinstance(event, (Life, Foreign)):
            self._begin(event)
        elif self._is_foreign:
            pass  # its lines may look like ours and mean something else
        elif isinstance(event, Step):
            self._life().steps.append(event)
        elif isinstance(event, TracedRound):
            self._life().rounds.append(event)
        elif isinstance(event, Pause):
            self._life().pauses.append(event)
        elif isinstance(event, Tally):
            self._life().tally = event
        elif isinstance(event, Finished) and event.pause is not None:
            self._life().pauses.append(event.pause)
        elif isinstance(event, Lost):
            self._lost += event.lines
        elif isinstance(event, Cut):
            self._note(f"recording ended early: {event.reason}")

    def _begin(self, header: Life | Foreign) -> None:
        """A new life, if its header can be believed."""
        self._is_foreign = isinstance(header, Foreign)
        if isinstance(header, Foreign):
            self._note(f"is of format {header.format}, and this version of outpace reads {FORMAT}")
        elif self.latest is not None and header.rank != self.rank:
            raise Nonsense(f"is a header of rank {header.rank} in the file of rank {self.rank}")
        else:
            self.lives.append(header)

    def _life(self) -> Life:
        """The current one. Lines before any header belong to one without."""
        if not self.lives:
            self._note("begins without a header, so it is read as if on another rank's clock")
            self.lives.append(Life())
        return self.lives[-1]

    def _note(self, words: str) -> None:
        if len(self._notes) < SAID:
            self._notes.append(words)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines; None for one that is too long."""
    number = 0
    while line := file.readline(LINE_BYTES):
        number += 1
        whole_line = len(line) < LINE_BYTES or line.endswith(b"\n")
        yield number, line.strip() if whole_line else None
        while line and not line.endswith(b"\n"):
            line = file.readline(LINE_BYTES)
