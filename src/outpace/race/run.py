"""The course of a race: every system in turn, as often as asked, and each attempt on real ranks.

The learning rate that suits a system can be looked for first. A few are tried in simulated time, on a seed that the
race does not use: ranks take as long as in the race, and what is late there is late here. The time of communication is
left out.

A user's own script is started on every rank as torchrun would start it. Which strategy its DistributedOptimizer takes,
and where it records, stands in the environment and overrides the script's arguments.
"""

from __future__ import annotations

import math
import os
import platform
import re
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from outpace.errors import InvalidRules, OutpaceError, RankFailed, TraceInvalid
from outpace.imbalance import Imbalance, imbalance
from outpace.job.environment import LOG_DIR, STRATEGY, whereami
from outpace.job.machine import check_memory, processor
from outpace.launching.spawn import spawn
from outpace.observe.reader import read_trace
from outpace.race.directory import save
from outpace.race.rank import FinishLine, RankReport, optimizer_of, task_of, train
from outpace.race.result import Attempt, Entry, Race, Settings, attempt_of
from outpace.race.systems import BASELINES, system
from outpace.simulation import Scenario, simulate_training
from outpace.version import __version__
from outpace.workloads import Workload
from outpace.workloads.base import Metric

SYSTEMS = ("ddp", "allreduce", "auto", "eager-majority", "wagma", "nonblocking")
SCRIPT_SYSTEMS = ("allreduce", "auto", "eager-majority")
FAILURE = "failure.txt"  #: in the directory of an attempt that failed
OUTPUT, LAST_LINES = "output-{:05d}.txt", 5  #: what a rank of a script printed, and how much of it an error shows
METRIC = Metric("training loss", higher_is_better=False)  #: all that is known of a script, if it gives step(loss=...)
FACTORS = (0.5, 1.0, 2.0)  #: of the workload's own learning rate
OTHER_SEED = 1000  #: so much further on than the race's first

Tell = Callable[[str], None]  #: hears in words what is tried


@dataclass(frozen=True)
class Turn:
    entry: Entry
    index: int  #: of the system among all, from 0
    repetition: int  #: from 0
    directory: Path  #: where its ranks record


#: Told of every turn; shows it while the context lasts.
Watch = Callable[[Race, Turn], AbstractContextManager[None]]


def check(settings: Settings, systems: Sequence[str]) -> None:
    """Raises what is wrong with a race before any process is started."""
    for name in systems:
        system(name).check(settings.ranks)
    if settings.script is not None:
        check_script(settings, list(systems))
    else:
        task_of(settings, settings.seed).batch(0, 0, settings.ranks)
        imbalance(settings.imbalance).compute_s(0, settings.ranks, 0, settings.compute_ms / 1000)
    if settings.tune and settings.seconds is not None:
        raise InvalidRules(
            "--tune compares after equal samples: give the length in --epochs or --rounds, not --seconds"
        )
    check_memory(settings.ranks)


def run_race(
    settings: Settings, systems: Sequence[str], command: str, run_dir: Path, watch: Watch, tell: Tell | None = None
) -> Race:
    """Runs all systems and returns what they found; Ctrl-C ends the current one and keeps what is there. Blocks.

    After every attempt, race.json holds all that is known. `tell` hears what is tried while learning rates are tuned.
    """
    race = _start(settings, systems, command)
    save(race, run_dir)
    try:
        if settings.tune:
            steps = steps_of(settings) or 1
            tuned_ones = (tuned(entry, settings, steps, race.metric, tell) for entry in race.entries)
            race = replace(race, entries=tuple(tuned_ones))
            save(race, run_dir)
        for repetition in range(settings.repeat):
            for index, entry in enumerate(race.entries):
                turn = Turn(entry, index, repetition, run_dir / _directory(entry, index, repetition, settings))
                with watch(race, turn):
                    attempt = _attempt(settings, turn)
                race = _with(race, index, attempt)
                save(race, run_dir)
    except KeyboardInterrupt:
        race = replace(race, interrupted=True)
        save(race, run_dir)
    return race


def _start(settings: Settings, systems: Sequence[str], command: str) -> Race:
    metric = METRIC if settings.script is not None else task_of(settings, settings.seed).metric
    entries = tuple(Entry(name, system(name).title) for name in systems)
    versions = f"Python {platform.python_version()}, torch {torch.__version__.partition('+')[0]}"
    load = f"load {os.getloadavg()[0]:.1f} when it began"
    machine = f"{processor()}, {os.cpu_count()} cores, {platform.system()}, {versions}, {load}"
    began = datetime.now().astimezone().isoformat(timespec="seconds")
    return Race(settings, command, metric, entries, began, machine, __version__)


def _attempt(settings: Settings, turn: Turn) -> Attempt:
    """Its result. A failure is summarised, and its whole text kept beside the recording."""
    attempt = Attempt(settings.seed + turn.repetition, turn.directory.name)
    run = run_workload if settings.script is None else run_script
    try:
        return run(turn.entry, settings, attempt, turn.directory)
    except OutpaceError as error:
        turn.directory.mkdir(exist_ok=True)
        (turn.directory / FAILURE).write_text(f"{error}\n", encoding="utf-8")
        return replace(attempt, error=str(error).strip().partition("\n")[0])


def _with(race: Race, index: int, attempt: Attempt) -> Race:
    entries = list(race.entries)
    entries[index] = replace(entries[index], attempts=(*entries[index].attempts, attempt))
    return replace(race, entries=tuple(entries))


def _directory(entry: Entry, index: int, repetition: int, settings: Settings) -> str:
    """Sorts in the order of the race, and shows the system's name."""
    name = re.sub(r"[^A-Za-z0-9.=-]+", "_", entry.system)[:60]
    repeated = f"-seed-{settings.seed + repetition}" if settings.repeat > 1 else ""
    return f"{index + 1:02d}-{name}{repeated}"


def run_workload(entry: Entry, settings: Settings, attempt: Attempt, log_dir: Path) -> Attempt:
    """Trains in `settings.ranks` processes. Blocks; returns the attempt with what was found, or raises `RankFailed`."""
    line = FinishLine(settings.ranks, steps_of(settings), settings.seconds)
    given = (entry.system, settings, attempt.seed, log_dir, line, entry.learning_rate)
    reports: list[RankReport | None] = spawn(train, settings.ranks, given)
    killed = [rank for rank, report in enumerate(reports) if report is None]
    if killed:
        raise RankFailed(f"rank {killed[0]} was killed while training with {entry.system}", killed[0])
    told = [report for report in reports if report is not None]
    samples, asked_s = [report.samples for report in told], [report.asked_s for report in told]
    return attempt_of(attempt, read_trace(log_dir), samples, told[0].curve, asked_s)


def steps_of(settings: Settings) -> int | None:
    """How many mini-batches each rank trains on; None where time decides."""
    if settings.seconds is not None:
        return None
    if settings.rounds is not None:
        return settings.rounds
    task = task_of(settings, settings.seed)
    epochs = task.race_epochs if settings.epochs is None else settings.epochs
    return max(1, round(epochs * task.steps_per_epoch))


def check_script(settings: Settings, systems: list[str]) -> None:
    if not Path(str(settings.script)).is_file():
        raise InvalidRules(f"there is no script {settings.script}: nothing was started")
    if settings.imbalance != "none":
        raise InvalidRules("--imbalance slows down the built-in workloads only; a script is as uneven as it is")
    given = [f"--{name}" for name in ("epochs", "rounds", "seconds") if getattr(settings, name) is not None]
    given += ["--tune"] if settings.tune else []
    if given:
        raise InvalidRules(f"{given[0]} applies to the built-in workloads only; a script decides when it ends")
    foreign = [name for name in systems if name.partition(":")[0] in BASELINES]
    if foreign:
        raise InvalidRules(
            f"{foreign[0]} cannot run your script, which makes a DistributedOptimizer; compare with allreduce, which "
            "waits for everybody as DDP does"
        )


def run_script(entry: Entry, settings: Settings, attempt: Attempt, log_dir: Path) -> Attempt:
    """Runs it to its end on all ranks. Blocks; raises `RankFailed` if a rank failed."""
    log_dir.mkdir(parents=True, exist_ok=True)
    environment = {STRATEGY: entry.system, LOG_DIR: str(log_dir.absolute())}
    try:
        ended = spawn(_run, settings.ranks, (settings.script, settings.arguments, log_dir.absolute()), environment)
    except RankFailed as failed:
        what, _, rest = str(failed).strip().partition("\n")
        raise RankFailed(f"{what}{_last_output(log_dir, failed.rank)}\n{rest}", failed.rank) from failed
    if None in ended:
        rank = ended.index(None)
        raise RankFailed(f"rank {rank} was killed while it ran the script{_last_output(log_dir, rank)}", rank)
    try:
        return attempt_of(attempt, read_trace(log_dir))
    except TraceInvalid as error:
        raise OutpaceError(
            "the script finished but recorded no step: it made no outpace.DistributedOptimizer, or never "
            f"called its step(). Its output is in {log_dir}"
        ) from error


def _last_output(log_dir: Path, rank: int) -> str:
    """Where a rank's output is, and how it ends."""
    output = log_dir / OUTPUT.format(rank)
    try:
        lines = [line.strip() for line in output.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ""
    last = " | ".join([line for line in lines if line][-LAST_LINES:])
    return f"; its output is in {output}" + (f", and ends with: {last}" if last else "")


def _run(script: str, arguments: tuple[str, ...], log_dir: Path) -> bool:
    """In each rank's process. Its output goes to a file, so that several ranks and strategies can be told apart."""
    output = os.open(log_dir / OUTPUT.format(whereami().rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).absolute().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise OutpaceError(f"the script ended with exit code {end.code}") from None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return True


def tuned(entry: Entry, settings: Settings, steps: int, metric: Metric, tell: Tell | None = None) -> Entry:
    """With the learning rate that led furthest, and what each did. Blocks for a simulated training of each."""
    tried = []
    for factor in FACTORS:
        if tell is not None:
            tell(f"{entry.title}: trying {factor:g} times the learning rate, in simulated time")
        tried.append((factor, _learned(entry.system, settings, steps, factor)))
    sign = 1 if metric.higher_is_better else -1
    best = max(tried, key=lambda pair: -math.inf if math.isnan(pair[1]) else sign * pair[1])
    return replace(entry, learning_rate=best[0], tried=tuple(tried))


def _learned(name: str, settings: Settings, steps: int, factor: float) -> float:
    """The metric at the end of a simulated training."""
    seed = settings.seed + OTHER_SEED
    task = task_of(settings, seed)
    scenario = Scenario(
        ranks=settings.ranks,
        steps=steps,
        compute_ms=settings.compute_ms or 100.0,
        imbalance=_OwnCosts(task, task.model(), imbalance(settings.imbalance, seed)),
        network="zero",
        microbatches=settings.microbatches,
        seed=seed,
    )
    found = simulate_training(system(name).simulated(), scenario, cast(Workload, _AtRate(task, factor)))
    return float(found.held_out.metric)


@dataclass(frozen=True)
class _OwnCosts:
    """What the imbalance makes of a step that takes as long as its samples ask for, by an untrained model."""

    task: Workload
    model: nn.Module
    imbalance: Imbalance

    @torch.no_grad()
    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        inputs, _ = self.task.batch(step, rank, world)
        cost = self.task.cost(inputs, self.model(inputs)) * self.task.size(len(inputs), world)
        return self.imbalance.compute_s(rank, world, step, base_s * cost)


class _AtRate:
    """A workload with another learning rate."""

    def __init__(self, task: Workload, factor: float) -> None:
        self._task, self._factor = task, factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return optimizer_of(self._task, model, self._factor)
