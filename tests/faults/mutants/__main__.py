"""`python -m tests.faults.mutants [NAME ...]`: runs each mutant against its test, and says which were not caught."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.faults.mutants import MUTANTS, NAME, Mutant

ROOT = Path(__file__).parents[3]
TESTS_FAILED = 1  # of pytest's exit codes; any other says that the test did not run
PATIENCE_S = 120


def main(names: list[str]) -> int:
    """Returns 1 if one was not caught."""
    survivors = 0
    print(f"{'mutant':15} {'caught':6} {'s':>4}  protection, and its test", flush=True)
    for name in names or MUTANTS:
        mutant, began = MUTANTS[name], time.monotonic()
        code, output = run(name, mutant)
        survivors += code != TESTS_FAILED
        said = {TESTS_FAILED: "yes", 0: "NO"}.get(code, f"? {code}")
        seconds = time.monotonic() - began
        print(f"{name:15} {said:6} {seconds:4.0f}  {mutant.protection}\n{'':28}{mutant.test}", flush=True)
        if code not in (0, TESTS_FAILED):
            print(output)
    print(f"{len(names or MUTANTS) - survivors} of {len(names or MUTANTS)} caught")
    return min(1, survivors)


def run(name: str, mutant: Mutant) -> tuple[int, str]:
    """Pytest's exit code and what it said."""
    site = Path(__file__).with_name("site")
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, NAME: name, "PYTHONPATH": os.pathsep.join(paths)}
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={PATIENCE_S}"]
    command = [sys.executable, "-m", "pytest", *options, mutant.test]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.returncode, done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
