"""`outpace run`, interrupted at random instants: `python interrupted.py TRIALS SEED DIRECTORY`. Prints what went wrong.

Each trial is a fork of one process that has imported everything, so that hundreds take a minute.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import outpace.cli.run  # noqa: F401 - what a trial would else import, where Ctrl-C is Python's own business
from outpace.cli import main

MARK = "OUTPACE_TEST_MARK"
LONGEST_S = 0.5  #: after which all ranks run, and wait to be interrupted
KINDS = ("once", "twice", "stubborn", "term")
CODES = {"term": 143}
SENT = {signal.SIGINT, signal.SIGTERM}


def left_behind(mark: str) -> list[str]:
    """Processes that descend from a trial."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if f"{MARK}={mark}".encode() in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                found.append(name)
        except OSError:
            continue
    return found


def child(directory: Path, kind: str, mark: str) -> None:
    """In a process of its own. As a shell has it, a signal that comes before the launcher hears it is its exit code."""
    code = 130
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT)
        code = launcher(directory, kind, mark)
    finally:
        os._exit(code)


def launcher(directory: Path, kind: str, mark: str) -> int:
    """What the `outpace` command does."""
    errors = os.open(directory / f"{mark}.stderr", os.O_WRONLY | os.O_CREAT)
    os.dup2(errors, 2)
    os.environ[MARK] = mark
    script = directory / ("stubborn.py" if kind == "stubborn" else "patient.py")
    try:
        return main(["run", "-n", "3", "--stop-within", "30", str(script)])
    except Exception:
        traceback.print_exc()
        return 99


def trial(directory: Path, kind: str, mark: str, draws: random.Random) -> list[str]:
    """What is wrong after one launcher was interrupted."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SENT)  # until the child hears them
    process = os.fork()
    if process == 0:
        child(directory, kind, mark)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT)
    time.sleep(draws.random() * LONGEST_S)
    os.kill(process, signal.SIGTERM if kind == "term" else signal.SIGINT)
    if kind in ("twice", "stubborn"):
        time.sleep(draws.random() * 0.1)
        os.kill(process, signal.SIGINT)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    words = (directory / f"{mark}.stderr").read_text() if (directory / f"{mark}.stderr").exists() else ""
    wrong = [f"exit code {code}"] if code != CODES.get(kind, 130) else []
    wrong += ["a traceback"] if "Traceback" in words else []
    wrong += [f"left {pid}" for pid in left_behind(mark)]
    return [f"{mark} ({kind}): {what}\n{words}" for what in wrong]


def trials(count: int, seed: int, directory: Path) -> list[str]:
    draws = random.Random(seed)
    (directory / "patient.py").write_text("import time\ntime.sleep(60)\n")
    ignoring = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)\n"
    (directory / "stubborn.py").write_text(ignoring)
    wrong = []
    for number in range(count):
        wrong += trial(directory, KINDS[number % len(KINDS)], f"{seed}-{number}", draws)
    return wrong


if __name__ == "__main__":
    found = trials(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    print("\n".join(found) if found else f"{sys.argv[1]} of {sys.argv[1]} clean")
    sys.exit(bool(found))
