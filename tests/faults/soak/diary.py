"""What one life of a rank writes down. A line is one write, so that a killed rank leaves all but its last one whole."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


def name_of(rank: int, life: int) -> str:
    return f"{rank}.{life}.diary"


class Diary:
    """The writing side."""

    def __init__(self, directory: Path, rank: int, life: int) -> None:
        self._file = os.open(directory / name_of(rank, life), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, what: str, *values: Any) -> None:
        """With the time on the clock that all processes of a machine share."""
        os.write(self._file, (json.dumps([what, time.monotonic(), *values]) + "\n").encode())


class Life:
    """The reading side: what is known of one life so far."""

    def __init__(self, directory: Path, rank: int, life: int) -> None:
        self.rank, self.life = rank, life
        self.pid = 0
        self.process_began_s = self.ready_s = 0.0
        self.incarnation: int | None = None  #: in the ledger; None before it has joined
        self.steps: list[tuple[float, float]] = []  #: when each that returned began and ended
        self.in_step: float | None = None  #: since when
        self.rounds: dict[int, tuple[list[list[int]], int]] = {}  #: number -> contributions, checksum after it
        self.end: dict[str, Any] | None = None
        self._path = directory / name_of(rank, life)
        self._read = 0
        self._torn = b""

    def look(self) -> bool:
        """Reads what is new. True if there is a diary."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return False
        self._read += len(text)
        *lines, self._torn = (self._torn + text).split(b"\n")
        for line in lines:
            self._take(*json.loads(line))
        return self.pid != 0

    def _take(self, what: str, at_s: float, *values: Any) -> None:
        if what == "began":
            self.pid, self.process_began_s = values
        elif what == "ready":
            self.ready_s = at_s
        elif what == "joined":
            self.incarnation = values[0]
        elif what == "step":
            self.in_step = at_s
        elif what == "stepped" and self.in_step is not None:
            self.steps.append((self.in_step, at_s))
            self.in_step = None
        elif what == "round":
            self.rounds[values[0]] = (values[1], values[2])
        elif what == "end":
            self.end = values[0]

    @property
    def begun_steps(self) -> int:
        """Those that returned, and one that may have been under way."""
        return len(self.steps) + (self.in_step is not None)
