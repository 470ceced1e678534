"""One attempt of one system at a workload: real ranks that train, and what they recorded. No process survives it."""

from __future__ import annotations

from pathlib import Path

from outpace.errors import RankFailed
from outpace.launching.spawn import spawn
from outpace.observe.reader import read_trace
from outpace.race.figures import attempt_of
from outpace.race.finish_line import FinishLine
from outpace.race.rank import RankReport, train
from outpace.race.result import Attempt
from outpace.race.settings import Settings
from outpace.workloads import workload


def run_workload(name: str, settings: Settings, attempt: Attempt, log_dir: Path) -> Attempt:
    """Trains in `settings.ranks` processes. Blocks; returns the attempt with what was found, or raises `RankFailed`."""
    line = FinishLine(settings.ranks, steps_of(settings), settings.seconds)
    reports: list[RankReport | None] = spawn(train, settings.ranks, (name, settings, attempt.seed, log_dir, line))
    killed = [rank for rank, report in enumerate(reports) if report is None]
    if killed:
        raise RankFailed(f"rank {killed[0]} was killed while training with {name}", killed[0])
    told = [report for report in reports if report is not None]
    return attempt_of(attempt, read_trace(log_dir), [report.samples for report in told], told[0].curve)


def steps_of(settings: Settings) -> int | None:
    """How many mini-batches each rank trains on; None where time decides."""
    if settings.seconds is not None:
        return None
    if settings.rounds is not None:
        return settings.rounds
    task = workload(settings.workload, settings.seed)
    epochs = task.race_epochs if settings.epochs is None else settings.epochs
    return max(1, round(epochs * task.steps_per_epoch))
