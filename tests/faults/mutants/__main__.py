"""`python -m tests.faults.mutants [NAME ...]`: each mutant against its test, which must fail, and pass without it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.faults.mutants import CONTROL, MUTANTS, NAME

ROOT = Path(__file__).parents[3]
PASSED, FAILED = 0, 1  # of pytest's exit codes; any other says that the test did not run
PATIENCE_S = 120
MARK = "OUTPACE_TEST_MUTANTS_OF"  # in the environment of all that a run of this program starts


def main(names: list[str]) -> int:
    """Returns 1 if one was not caught."""
    names = names or list(MUTANTS)
    code, said = run(CONTROL, [MUTANTS[name].test for name in names])
    if code != PASSED:
        print(f"the tests fail without any mutant, so that they show nothing:\n{said[-5000:]}")
        return 1
    print(f"{'mutant':15} {'caught':6} {'s':>4}  protection, its test, and how that failed", flush=True)
    caught = 0
    for name in names:
        began = time.monotonic()
        code, said = run(name, [MUTANTS[name].test])
        caught += code == FAILED
        answer = {FAILED: "yes", PASSED: "NO"}.get(code, f"? {code}")
        lines = MUTANTS[name].protection, MUTANTS[name].test, _how(said)
        seconds = time.monotonic() - began
        print(f"{name:15} {answer:6} {seconds:4.0f}  " + f"\n{'':29}".join(lines), flush=True)
    print(f"{caught} of {len(names)} caught")
    return int(caught < len(names))


def _how(said: str) -> str:
    """The line in which pytest says what is wrong."""
    return next(iter(re.findall(r"^E +(.+)$", said, re.MULTILINE)), said[-300:])[:150]


def run(name: str, tests: Sequence[str]) -> tuple[int, str]:
    """Pytest's exit code and what it said."""
    site = Path(__file__).with_name("site")
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, NAME: name, MARK: str(os.getpid()), "PYTHONPATH": os.pathsep.join(paths)}
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={PATIENCE_S}"]
    command = [sys.executable, "-m", "pytest", *options, *dict.fromkeys(tests)]
    with tempfile.TemporaryFile("w+") as output:  # no pipe, which those who outlive the test would keep open
        try:
            code = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            ).returncode
        finally:
            _end_what_is_left(f"{NAME}={name}".encode(), f"{MARK}={os.getpid()}".encode())
        output.seek(0)
        return code, output.read()


def _end_what_is_left(*marks: bytes) -> None:
    """Some mutants have ranks that outlive their test."""
    for found in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            environment = Path("/proc", found, "environ").read_bytes().split(b"\0")
            if int(found) != os.getpid() and all(mark in environment for mark in marks):
                os.kill(int(found), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
