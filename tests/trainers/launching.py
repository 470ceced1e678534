"""Programs that train with a framework, started as its users start them, and what their ranks told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.processes import ROOT, finding_tests, hear_ctrl_c
from tests.trainers.programs import task

PROGRAMS = "tests.trainers.programs"
LAUNCHERS = {
    "python": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "outpace": [sys.executable, "-m", "outpace", "run", "-n", "2"],
}


def launch(launcher: str, program: str, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a module to its end; a path is run as a script."""
    name = ["-m", f"{PROGRAMS}.{program}"] if "." not in program else [str(ROOT / program)]
    return subprocess.run(
        [*LAUNCHERS[launcher], *name, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=170,
        preexec_fn=hear_ctrl_c,
        env=finding_tests(OMP_NUM_THREADS="1", **env),
    )


def finished(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(folder: Path, name: str, ranks: int = 2) -> list[dict[str, Any]]:
    return [json.loads(Path(folder, f"{name}-{rank}.json").read_text()) for rank in range(ranks)]


def same_on_all_ranks(folder: Path, name: str, what: str = "weights") -> Any:
    first, *others = (each[what] for each in told(folder, name))
    assert all(other == first for other in others)
    return first


def assert_shared(folder: Path) -> None:
    """Each sample was given to one rank in each epoch, and to the first rank more than an even share."""
    first, second = (each["drawn"] for each in told(folder, "shared"))
    assert len(first) == 2
    assert len(first[0]) >= task.MORE * task.BATCH
    for epoch, own in enumerate(first):
        assert sorted(own + (second[epoch] if epoch < len(second) else [])) == list(range(task.ROWS))
