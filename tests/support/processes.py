"""Processes that tests start by a command, and look at from outside."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def finding_tests(**more: str) -> dict[str, str]:
    """An environment in which a program that is started by its path can import `tests`."""
    return {**os.environ, "PYTHONPATH": python_path(), **more}


def python_path(*first: Path) -> str:
    """PYTHONPATH for `tests`, and for what is in these directories."""
    before = filter(None, [os.environ.get("PYTHONPATH")])
    return os.pathsep.join([*before, *map(str, first), str(ROOT)])


def hear_ctrl_c() -> None:
    """A shell has its background jobs ignore SIGINT, nohup SIGHUP, and so does all they start: these tests among it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
