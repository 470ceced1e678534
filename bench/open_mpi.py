"""Open MPI as a peer: starts `mpirun`, and is what runs in its ranks (`python -m bench.open_mpi`).

The ranks import no torch: only numpy and mpi4py, as one would use Open MPI from Python.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.schedule import Calls, Schedule

ROOT = Path(__file__).parent.parent
MISSING = "Open MPI is not installed (Debian: openmpi-bin; pip install mpi4py): skipped"


def is_installed() -> bool:
    """Both the launcher and its Python side."""
    return shutil.which("mpirun") is not None and importlib.util.find_spec("mpi4py") is not None


def allreduce_s(ranks: int, elements: int, times: int) -> float:
    """Seconds of an allreduce, back to back."""
    return float(_started(ranks, "allreduce", {"elements": elements, "times": times}))


def skewed(ranks: int, elements: int, schedule: Schedule) -> list[Calls]:
    """What each rank saw in the micro-benchmark of skew.py."""
    return [Calls(*of_rank) for of_rank in _started(ranks, "skewed", {"elements": elements, **asdict(schedule)})]


def _started(ranks: int, what: str, options: dict[str, Any]) -> Any:
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks)]
    command += [sys.executable, "-m", __name__, what, json.dumps(options)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    mpirun = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    try:
        said, errors = mpirun.communicate()
    except BaseException:
        mpirun.terminate()  # it ends its ranks; killed outright, it would leave them behind
        mpirun.communicate()
        raise
    if mpirun.returncode != 0:
        raise RuntimeError(f"mpirun failed:\n{errors}")
    return json.loads(said.splitlines()[-1])


def _allreduce(world: Any, elements: int, times: int) -> float:
    call = _call(world, elements)
    for _ in range(3):
        call()
    world.Barrier()
    began = time.perf_counter()
    for _ in range(times):
        call()
    return max(world.allgather((time.perf_counter() - began) / times))


def _skewed(world: Any, elements: int, **schedule: Any) -> list[Calls]:
    times = Schedule(**schedule)
    return list(world.allgather(times.run(_call(world, elements), world.rank, world.bcast(times.start()))))


def _call(world: Any, elements: int) -> Any:
    import numpy

    mine = numpy.ones(elements, dtype=numpy.float32)
    summed = numpy.empty_like(mine)
    return lambda: world.Allreduce(mine, summed)


def _rank() -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    what, options = sys.argv[1], json.loads(sys.argv[2])
    found = {"allreduce": _allreduce, "skewed": _skewed}[what](world, **options)  # type: ignore[operator]
    if world.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    _rank()
