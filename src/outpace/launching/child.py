"""The process of one rank, its standard error, and its lives one after the other.

A rank leads a process group of its own, which its data loaders and other children belong to. All of it is killed before
the rank counts as ended: what could still wake up must not meet its replacement. A thread of its own reads each rank's
standard error, so that a terminal that does not scroll holds up nothing but those who write.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from outpace.job.environment import LIFE, Report
from outpace.launching import leash
from outpace.launching.signals import cause

WINDOW_S = 600.0  #: restarts longer ago are forgotten
FIRST_S, LONGEST_S = 0.1, 10.0  #: a rank is started again after so long, twice that the next time, and so on
HEALTHY_S = 30.0  #: a rank that lived so long begins with the shortest delay again
GONE_WITHIN_S = 5.0  #: for killed processes to be gone; one that the kernel cannot end is not waited for longer
KEPT_BYTES = 1 << 16
LINES_WITHOUT_TRACEBACK = 20
DRAIN_S = 1.0  #: for what a rank wrote last; longer only if somebody else holds its standard error
_BEGIN = re.compile(r"^(?:  \+ Exception Group )?Traceback \(most recent call last\):$", re.MULTILINE)
_LINKS = ("The above exception was the direct cause", "During handling of the above exception")
_NOISE = re.compile(rb"^(?:Traceback \(most recent call last\):|Exception ignored in|Fatal Python error)", re.MULTILINE)


def say(words: str) -> None:
    pass_on(f"outpace run: {words}\n".encode())


def pass_on(text: bytes) -> None:
    """To the launcher's standard error, if anybody still reads that."""
    with suppress(OSError):
        sys.stderr.flush()
        while text:
            text = text[os.write(2, text) :]


def last_words(text: str) -> str:
    """The last traceback with all that led to it, or the last lines where there is none.

    >>> print(last_words("step 7\\nTraceback (most recent call last):\\n  ...\\nValueError: no"))
    Traceback (most recent call last):
      ...
    ValueError: no
    """
    begins = [match.start() for match in _BEGIN.finditer(text)]
    while len(begins) > 1 and any(link in text[begins[-2] : begins[-1]] for link in _LINKS):
        begins.pop()
    if begins:
        return text[begins[-1] :].rstrip()
    return "\n".join(text.rstrip().splitlines()[-LINES_WITHOUT_TRACEBACK:])


class Tail:
    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._kept = b""
        self._held = b""
        self.is_interrupted = False  #: Ctrl-C was pressed: a traceback that only says so is not shown
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def end(self, code: int) -> str:
        """After the process ended with this exit code: waits for the rest of its output and returns the last part."""
        self._thread.join(DRAIN_S)
        if code > 0 and not self._held.rstrip().rpartition(b"\n")[2].startswith(b"KeyboardInterrupt"):
            pass_on(self._held)
        return self._kept.decode(errors="replace")

    def _read(self) -> None:
        with suppress(OSError), self._pipe:
            while chunk := os.read(self._pipe.fileno(), 65536):
                self._kept = (self._kept + chunk)[-KEPT_BYTES:]
                if self.is_interrupted and (self._held or _NOISE.search(chunk)):
                    self._held += chunk
                else:
                    pass_on(chunk)


class Child:
    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        """Starts it. From the main thread only: the kernel ends it when the thread that started it ends."""
        leashed = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *command]
        self._process = subprocess.Popen(
            leashed, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stderr is not None
        self.tail = Tail(self._process.stderr)
        self.began_s = time.monotonic()

    @property
    def pid(self) -> int:
        """Also that of its group."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether the process is dead. It stays a zombie, so that its process id is not reused."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def signal(self, number: int) -> None:
        """To the whole group, also to those that are stopped."""
        for each in (number, signal.SIGCONT):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, each)

    def end(self) -> tuple[int, str]:
        """Kills what is left of it and waits until all are gone. Returns the exit code and the last words."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        deadline = time.monotonic() + GONE_WITHIN_S
        while any(_living(self.pid)) and time.monotonic() < deadline:
            time.sleep(0.001)
        code = self._process.wait()
        return code, self.tail.end(code)


def _living(group: int) -> Iterator[int]:
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:  # a glob raises when a process ends meanwhile
        with suppress(OSError, ValueError):
            state, _, its_group = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                yield int(name)


@dataclass(frozen=True)
class Ending:
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
        return self.code == 0 and self.finished + self.left >= self.joined

    def __str__(self) -> str:
        in_training = ", in the middle of its training" if self.code == 0 else ""
        return f"rank {self.rank} ended with {cause(self.code)}{in_training}"


class Restarts:
    """When one rank that ended is started again: back-off and limit. Looks at no clock.

    >>> restarts = Restarts(limit=3)
    >>> [restarts.after(now_s, lived_s=5.0) for now_s in (10.0, 20.0, 30.0, 40.0)]
    [0.1, 0.2, 0.4, None]
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit  #: within `WINDOW_S`
        self._at: list[float] = []
        self._delay_s = FIRST_S

    @property
    def count(self) -> int:
        return len(self._at)

    def after(self, now_s: float, lived_s: float) -> float | None:
        """Seconds until a rank that ended now, after a life of `lived_s`, is restarted; None if it is not."""
        self._at = [at for at in self._at if now_s - at < WINDOW_S]
        if len(self._at) >= self.limit:
            return None
        self._at.append(now_s)
        delay_s = FIRST_S if lived_s >= HEALTHY_S else self._delay_s
        self._delay_s = min(2 * delay_s, LONGEST_S)
        return delay_s


class Seat:
    """One rank of the job, restarted until it finishes: its lives, one after the other."""

    def __init__(self, rank: int, store: Any, restarts: Restarts) -> None:
        self.rank, self.restarts = rank, restarts
        self.child: Child | None = None
        self.due_s: float | None = None  #: when it is to be started
        self.has_raised = False  #: a life of it ended with an exit code other than 0
        self._store = store
        self._life = 0

    @property
    def lives(self) -> bool:
        return self.child is not None

    def start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._life += 1
        self.due_s = None
        self.child = Child(command, {**environment, LIFE: str(self._life)})

    def count(self, what: str) -> int:
        return Report(self._store, self.rank, self._life).count(what)

    def end(self) -> Ending:
        assert self.child is not None
        code, words = self.child.end()
        lived_s = time.monotonic() - self.child.began_s
        self.child = None
        self.has_raised = self.has_raised or code > 0
        report = Report(self._store, self.rank, self._life)
        counts = report.count("joined"), report.count("finished"), report.count("left")
        return Ending(self.rank, code, words, lived_s, *counts, report.error)
