"""Commands and scripts as forks of the server that ranks are forked from: none of them imports torch, which takes
longer than what most tests have them do. Where it matters how a process begins or ends, tests start a real one."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import outpace
from outpace.cli import main
from outpace.launching import spawn
from tests.faults.soak import forked
from tests.support.processes import hear_ctrl_c


class Warm:
    """An `outpace` command in a session of its own, whose ranks are forks of it. What it writes is in `stdout` and
    `stderr` of the directory; it runs in `where`. Has what tests need of a `subprocess.Popen`."""

    def __init__(
        self, arguments: Sequence[str], directory: Path, where: Path | None = None, backs_off: bool = True
    ) -> None:
        given = (arguments, directory, where or Path.cwd(), backs_off)
        self._process = multiprocessing.get_context("forkserver").Process(target=_command, args=given)
        self._process.start()
        self.pid = self._process.pid
        self.kill = self._process.kill

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        self._process.join(seconds)
        assert self._process.exitcode is not None, "the command has not ended"
        return self._process.exitcode


def _command(arguments: Sequence[str], directory: Path, where: Path, backs_off: bool) -> None:
    os.setsid()
    os.chdir(where)
    hear_ctrl_c()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the server does not hear it
    for name, number in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(directory / name, os.O_WRONLY | os.O_CREAT), number)
    forked.fork_ranks(backs_off)
    spawn._context = lambda fn: multiprocessing.get_context("fork")
    sys.exit(main(arguments))


def run_script(script: Path, *arguments: str, output: Path, ranks: int = 2, **env: str) -> str:
    """What a script's ranks print, to that file. They find the environment that a launcher such as torchrun makes."""
    output.write_text("")
    outpace.spawn(_script, ranks, (str(script), arguments, str(output)), env=env)
    return output.read_text()


def _script(script: str, arguments: Sequence[str], output: str) -> None:
    os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), 1)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (until the process ends)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
