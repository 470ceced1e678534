"""`python -m tests.faults.mutants [NAME ...]`: each mutant against its test, which must fail, and pass without it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.mutants import CONTROL, MUTANTS, NAME

ROOT = Path(__file__).parents[3]
PASSED, FAILED = 0, 1  # of pytest's exit codes; any other says that the test did not run
PATIENCE_S = 120


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
    environment = {**os.environ, NAME: name, "PYTHONPATH": os.pathsep.join(paths)}
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={PATIENCE_S}"]
    command = [sys.executable, "-m", "pytest", *options, *dict.fromkeys(tests)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
