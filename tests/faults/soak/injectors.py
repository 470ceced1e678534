"""Kills and stops. Each makes sure that it happened; one that did not is not counted."""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from tests.faults.soak.diary import Life

HAPPENS_WITHIN_S = 5.0


@dataclass
class Fault:
    """One that happened, with who was hit and when it was over."""

    kind: str  #: kill or stop
    rank: int
    life: int
    began_s: float
    ended_s: float | None = None  #: woken; killed: its replacement has contributed
    is_alone: bool = True  #: no other fault while it lasted


def state_of(pid: int) -> str:
    """As in /proc, and nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def kill(life: Life) -> Fault | None:
    """Returns when the process is gone."""
    try:
        process = os.pidfd_open(life.pid)
    except ProcessLookupError:
        return None
    try:
        at_s = time.monotonic()
        signal.pidfd_send_signal(process, signal.SIGKILL)
        if not select.select([process], [], [], HAPPENS_WITHIN_S)[0]:
            return None
    except ProcessLookupError:
        return None
    finally:
        os.close(process)
    return Fault("kill", life.rank, life.life, at_s)


def stop(life: Life) -> Fault | None:
    """Returns when the process is in state T."""
    try:
        os.kill(life.pid, signal.SIGSTOP)
    except ProcessLookupError:
        return None
    deadline = time.monotonic() + HAPPENS_WITHIN_S
    while (state := state_of(life.pid)) != "T":
        if state in ("", "Z", "X") or time.monotonic() > deadline:
            return None
        time.sleep(0.0005)
    return Fault("stop", life.rank, life.life, time.monotonic())


def wake(life: Life) -> bool:
    """Returns whether it had been stopped all the while."""
    was_stopped = state_of(life.pid) == "T"
    os.kill(life.pid, signal.SIGCONT)
    return was_stopped
