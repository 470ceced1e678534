"""Shared by the benchmarks: an engine without a model, peers, and medians with their spread."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from outpace.engines.base import Result, Work, run
from outpace.engines.local.engine import LocalEngine
from outpace.engines.local.open import open_local
from outpace.environment import whereami
from outpace.replica import OptimizerReplica
from outpace.strategies import strategy

HERE = Path(__file__).parent


class BareReplica(OptimizerReplica):
    """Takes part in rounds but trains nothing, so that only the engine is measured."""

    def __init__(self, elements: int, deposits: bool) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(elements))
        super().__init__(torch.optim.SGD([self.weight], lr=1.0), None)
        self.weight.grad = torch.ones(elements)
        self._deposits = deposits
        self.seen = self.weight.detach()

    def deposit(self, row, work: Work, onto=None):
        """Copies the gradients, or leaves what lies in the row already."""
        return super().deposit(row, work, onto) if self._deposits else (b"\1", b"")

    def apply(self, result: Result) -> None:
        """Has the averaged vector, readable in place, as an optimizer would."""
        self.seen = result.gradients[0]
        self.version += 1


def open_bare(elements: int, choice: str, deposits: bool) -> tuple[LocalEngine, Callable[[], None]]:
    """A running engine, and one whole step on it."""
    place = whereami()
    chosen = strategy(choice)
    replica = BareReplica(elements, deposits)
    engine = open_local(replica, chosen.rules(place.world), place, None, 120.0)
    return engine, lambda: run(chosen.step(engine, Work()))


def per_call_s(call: Callable[[], object], times: int) -> float:
    """Mean seconds of back-to-back calls."""
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times


def median_and_spread(values: list[float]) -> str:
    """In milliseconds: the median, and between which values all lie."""
    low, high = min(values) * 1e3, max(values) * 1e3
    return f"{statistics.median(values) * 1e3:9.3f} ms ({low:.3f} to {high:.3f})"


def open_mpi_s(ranks: int, elements: int, times: int) -> float | None:
    """Seconds of Open MPI's allreduce, or None where it is not installed."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        return None
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), sys.executable]
    command += [str(HERE / "mpi_allreduce.py"), str(elements), str(times)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        raise SystemExit(f"mpirun failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])
