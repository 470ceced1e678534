"""Ties a process to the one that started it: when that ends, however it ends, the kernel ends this one, too.

Imports nothing but the standard library: `outpace run` starts this file in front of each rank's own program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Has the kernel end this process when the one that started it ends: `parent`, where its process id is known."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # it ended before the kernel was told


def main(arguments: list[str]) -> None:
    """Becomes another program, which inherits the tie. The first argument is the parent's process id."""
    parent, *command = arguments
    die_with_parent(int(parent))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"outpace run: {command[0]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
