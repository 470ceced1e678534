"""One simulated training of a cell, and where it is kept.

A run is kept under a hash of all that it depends on, the code included: what is measured again costs what was changed.
"""

from __future__ import annotations

import inspect
import json
import math
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from bench.learning.cells import MICROBATCHES, NETWORK, Cell
from bench.learning.sources import code_of, digest
from bench.learning.tasks import IMBALANCES, SHARED_DATA, Task, imbalance_of, schedule
from outpace.errors import InvalidRules
from outpace.protocol.events import Done, Event, Outcome
from outpace.simulation import BASELINE, Scenario, simulate_timing, simulate_training
from outpace.strategies import strategy

KEPT = Path(__file__).parents[2] / "runs" / "learning"
Record = dict[str, Any]  #: plain, for JSON


@dataclass(frozen=True)
class Job:
    """A run to be made."""

    cell: Cell
    strategy: str
    seed: int
    in_another_order: bool = False  #: the same data, dealt in another order: how much is chance

    def key(self) -> str:
        """A hash of all that the run depends on."""
        chosen = strategy(self.strategy)
        given = {
            **asdict(self.cell),
            "name": "",
            "imbalance": IMBALANCES[self.cell.imbalance],
            "strategy": repr(chosen),
            "seed": self.seed,
            "another": self.in_another_order,
            "assumed": [NETWORK, MICROBATCHES],
            "torch": torch.__version__,
            "code": [_how(), code_of(type(chosen))],
        }
        return digest(json.dumps(given))


def made(job: Job) -> Record:
    """Trains. Blocks for some seconds; a strategy that refuses the optimizer is a result, too."""
    if job.strategy == BASELINE and job.cell.imbalance != "none":
        return _on_its_clock(job)
    cell, began_s = job.cell, time.process_time()
    task, scenario = _task(job)
    try:
        found = simulate_training(
            job.strategy, scenario, task, schedule=schedule(cell.optimizer, cell.steps), evaluations=cell.points
        )
    except InvalidRules as refused:
        return {"refused": str(refused)}
    return {
        "metric": _number(found.held_out.metric),
        "curve": [[point.share, point.seconds, _number(point.score.metric)] for point in found.curve],
        "seconds": found.curve[-1].seconds,
        "late_share": found.late_share,
        "applied_share": found.applied_share,
        "rounds": found.rounds,
        "cpu_s": time.process_time() - began_s,
    }


def _task(job: Job) -> tuple[Task, Scenario]:
    cell = job.cell
    task = Task(cell.workload, cell.optimizer, cell.learning_rate, job.seed, job.in_another_order)
    return task, Scenario(
        ranks=cell.ranks,
        steps=cell.steps,
        compute_ms=cell.compute_ms,
        imbalance=imbalance_of(cell.imbalance, task, cell.steps),
        network=NETWORK,
        data="shared" if SHARED_DATA else "split",
        microbatches=MICROBATCHES,
        seed=job.seed,
    )


def _on_its_clock(job: Job) -> Record:
    """Allreduce waits for everybody, so that it learns the same whoever is late: it is trained once without any
    imbalance, and what an imbalance changes is when each of its rounds ends."""
    alike = replace(job, cell=replace(job.cell, name="", imbalance="none"))
    trained = _read(alike.key())
    if trained is None:
        trained = made(alike)
        _keep(alike.key(), alike, trained)
    ends_s = [0.0]

    def note(event: Event, outcome: Outcome) -> None:
        if isinstance(event, Done):
            ends_s.append(event.time_ns / 1e9)

    simulate_timing(BASELINE, _task(job)[1], watch=note)
    of_round_s = job.cell.compute_ms / 1000
    curve = [[share, ends_s[round(seconds / of_round_s)], metric] for share, seconds, metric in trained["curve"]]
    return {**trained, "curve": curve, "seconds": ends_s[-1]}


def all_made(jobs: Sequence[Job], workers: int, tell: Callable[[Job], None]) -> dict[Job, Record]:
    """The runs of all jobs, those that are not kept made by so many processes. `tell` hears of each that is there."""
    found: dict[Job, Record] = {}
    missing: dict[str, list[Job]] = {}
    for job in jobs:
        record = kept(job)
        if record is None:
            missing.setdefault(job.key(), []).append(job)
        else:
            found[job] = record
            tell(job)
    with _pool(min(workers, len(missing))) as results:
        for key, record in results(_make, [(key, alike[0]) for key, alike in missing.items()]):
            if "failed" not in record:
                _keep(key, missing[key][0], record)
            for job in missing[key]:
                found[job] = record
                tell(job)
    return {job: found[job] for job in jobs}


def kept(job: Job) -> Record | None:
    """A run that was made with this code, if there is one."""
    return _read(job.key())


@cache
def _how() -> str:
    return "".join(map(inspect.getsource, (made, _task, _on_its_clock)))


@contextmanager
def _pool(workers: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """Processes that end with the context, whatever ends that. Ctrl-C is for the one that asks them alone."""
    if not workers:
        yield lambda function, items: []
        return
    with multiprocessing.get_context("forkserver").Pool(workers, _begin_worker) as pool:
        yield pool.imap_unordered


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quiet()


def quiet() -> None:
    """One thread, and not the warning of a rank whose scheduler is a step ahead, because it was left out of the very
    first rounds: as in a script, that is harmless."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")


def _make(asked: tuple[str, Job]) -> tuple[str, Record]:
    key, job = asked
    try:
        return key, made(job)
    except Exception as failure:  # one run that fails must not cost the others; it is made again next time
        return key, {"failed": f"{type(failure).__name__}: {failure}"}


def _keep(key: str, job: Job, record: Record) -> None:
    """At once: whoever is interrupted leaves the whole file or none."""
    path = _path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps({"job": [job.cell.name, job.strategy, job.seed], **record}), encoding="utf-8")
    os.replace(beside, path)


def _read(key: str) -> Record | None:
    path = _path(key)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _path(key: str) -> Path:
    return KEPT / key[:2] / f"{key}.json"


def _number(value: float) -> float | None:
    """What is not finite is none in JSON."""
    return value if math.isfinite(value) else None
