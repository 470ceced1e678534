"""`outpace run` whose ranks are forks of the launcher, which has imported torch: a restart costs no seconds.

Everything else is what `outpace run` does: only how a rank's process begins is replaced, on the side of the test.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace

import torch

from outpace import lifetimes
from outpace.cli import main
from outpace.launching import child
from outpace.launching.leash import die_with_parent

HEARD = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}
LEASH = 5  #: words in front of a rank's own command


def import_everything() -> None:
    """torch imports its compiler when the first optimizer is made."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)


def fork(body: Callable[[], int]) -> int:
    """A process of its own session that hears signals as a fresh one does. Returns its process id."""
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    process = os.fork()
    if process:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return process
    code = 99
    try:
        os.setsid()
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        for number in HEARD - {signal.SIGINT}:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
        code = body()
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def launch(arguments: Sequence[str], output: int, errors: int, environment: dict[str, str]) -> int:
    """The launcher in a fork of this process. Returns its process id."""

    def body() -> int:
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.environ.update(environment)
        fork_ranks(backs_off=False)
        return main(["run", *arguments])

    return fork(body)


def fork_ranks(backs_off: bool = True) -> None:
    """From now on ranks that this process launches are forks of it.

    backs_off: waits longer and longer before it starts a rank again. With many restarts that is most of the time.
    """
    if not backs_off:
        child.HEALTHY_S = 0.0
    child.subprocess = SimpleNamespace(Popen=_Fork, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)  # type: ignore[assignment]


class _Fork:
    """What the launcher needs of a `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], env: dict[str, str], **_: object) -> None:
        reading, writing = os.pipe()
        self.pid = fork(lambda: _become(command[LEASH:], env, writing))
        os.close(writing)
        self.stderr = os.fdopen(reading, "rb")

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _become(command: Sequence[str], environment: dict[str, str], errors: int) -> int:
    """Runs a script as `python -u script.py ...` would, and returns its exit code."""
    script = next(word for word in command if word.endswith(".py"))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(errors, 2)
    _let_go_of_files()
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 (the old one may be locked by a thread that is gone)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    sys.argv = list(command[command.index(script) :])
    try:
        runpy.run_path(script, run_name="__main__")
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except Exception as error:
        traceback.print_exc()
        sys.last_value = error
        lifetimes.end_all()
        return 1
    lifetimes.end_all()
    return 0


def _let_go_of_files() -> None:
    """Of the launcher. What it had open is not closed but emptied: objects that are here, too, will close it by its
    number, and must not close what the rank has opened since."""
    for number in range(3, 1024):
        with suppress(OSError):
            os.fstat(number)
            os.dup2(0, number)
