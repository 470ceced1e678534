"""One life of one rank: its process and those around it. Owns that nothing of it is left when it has ended.

A rank leads a process group of its own, which its data loaders and other children belong to. All of it is killed before
the rank counts as ended: what could still wake up must not meet its replacement.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from outpace.launching import leash
from outpace.launching.screen import Tail

GONE_WITHIN_S = 5.0  #: for killed processes to be gone; one that the kernel cannot end is not waited for longer


class Child:
    """A process that was started, until `end`."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        """Starts it. From the main thread only: the kernel ends it when the thread that started it ends."""
        leashed = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *command]
        self._process = subprocess.Popen(
            leashed,
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stderr is not None
        self.tail = Tail(self._process.stderr)
        self.began_s = time.monotonic()

    @property
    def pid(self) -> int:
        """Also that of its group."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether the process is dead. It stays a zombie, so that its number stays its own."""
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
    """Processes of a group that are no zombies."""
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:  # a glob raises when a process ends meanwhile
        with suppress(OSError, ValueError):
            state, _, its_group = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                yield int(name)
