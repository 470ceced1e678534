"""Leaves nothing behind: ends the processes of namespaces, removes these and directories. Owns their names.

A name carries the process that made it, by number and starting time, so that nobody takes what is another's for
stale. `python -m tests.network.cleanup NAME ...` waits until its standard input is closed, by whatever ended the
process that holds the other end, and then removes these.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.network.commands import NetworkError, run

PREFIX = "outpace"
PATTERN = re.compile(rf"{PREFIX}-(\d+)-(\d+)-\d+-\w+")
DEADLINE_S = 20.0
PERSISTED = Path("/run/netns")


def name_of(serial: int, part: str) -> str:
    """For a namespace or directory of this process."""
    return f"{PREFIX}-{os.getpid()}-{_began(os.getpid())}-{serial}-{part}"


def path_of(name: str) -> Path:
    """Where a directory of that name is."""
    return Path(tempfile.gettempdir(), name)


def namespaces() -> set[str]:
    """All that were made by anybody's harness."""
    return {path.name for path in PERSISTED.glob(f"{PREFIX}-*") if PATTERN.fullmatch(path.name)}


def directories() -> set[str]:
    """Likewise."""
    return {path.name for path in path_of("").glob(f"{PREFIX}-*") if PATTERN.fullmatch(path.name)}


def existing() -> set[str]:
    """Both."""
    return namespaces() | directories()


def stale() -> set[str]:
    """Those whose maker has ended."""
    return {name for name in existing() if not _is_maker_alive(name)}


def pids_in(name: str) -> list[int]:
    """All processes in a namespace."""
    return [int(line) for line in run("ip", "netns", "pids", name).split()]


def end_processes(name: str) -> None:
    """Kills everything in a namespace, also what is started meanwhile."""
    deadline = time.monotonic() + DEADLINE_S
    while pids := pids_in(name):
        if time.monotonic() > deadline:
            raise NetworkError(f"processes {pids} in {name} are still there {DEADLINE_S:g} s after SIGKILL")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def remove(names: Iterable[str]) -> None:
    """Ends the processes of these namespaces and removes them and directories, as far as they still exist."""
    for act in (end_processes, lambda name: run("ip", "netns", "delete", name)):
        for name in sorted(set(names) & namespaces()):
            try:
                act(name)
            except NetworkError:
                if name in namespaces():  # else somebody else swept it at the same time
                    raise
    for name in set(names) & directories():
        shutil.rmtree(path_of(name), ignore_errors=True)


def _began(pid: int) -> int:
    """When a process was started, in ticks since the machine was; 0 if there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _is_maker_alive(name: str) -> bool:
    found = PATTERN.fullmatch(name)
    return found is not None and _began(int(found[1])) == int(found[2])


if __name__ == "__main__":
    sys.stdin.read()
    remove(sys.argv[1:])
