"""`python -m tests.faults.mutants [NAME ...]`: each mutant against its test, which must fail, and pass without it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.faults.mutants import CONTROL, MUTANTS, NAME

ROOT = Path(__file__).parents[3]
PASSED, FAILED = 0, 1  # of pytest's exit codes; any other says that the test did not run
PATIENCE_S = 120


def main(names: list[str]) -> int:
    """Returns 1 if one was not caught."""
    caught = 0
    names = names or list(MUTANTS)
    print(f"{'mutant':15} {'caught':6} {'s':>4}  protection, its test, and how that failed", flush=True)
    for name in names:
        began = time.monotonic()
        is_caught, how = hunt(name)
        caught += is_caught
        said, seconds = "yes" if is_caught else "NO", time.monotonic() - began
        lines = MUTANTS[name].protection, MUTANTS[name].test, how
        print(f"{name:15} {said:6} {seconds:4.0f}  " + f"\n{'':29}".join(lines), flush=True)
    print(f"{caught} of {len(names)} caught")
    return int(caught < len(names))


def hunt(name: str) -> tuple[bool, str]:
    """Whether the test fails with the mutant and only with it, and what it said."""
    code, said = run(name, MUTANTS[name].test)
    if code != FAILED:
        return False, "passed" if code == PASSED else f"did not run: {said[-2000:]}"
    how = next(iter(re.findall(r"^E +(.+)$", said, re.MULTILINE)), said[-300:])[:150]
    control, said = run(CONTROL, MUTANTS[name].test)
    return control == PASSED, how if control == PASSED else f"fails without the mutant, too: {said[-2000:]}"


def run(name: str, test: str) -> tuple[int, str]:
    """Pytest's exit code and what it said."""
    site = Path(__file__).with_name("site")
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, NAME: name, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--timeout={PATIENCE_S}", test]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
