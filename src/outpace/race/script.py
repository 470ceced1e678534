"""A user's own script, once for each strategy. Owns how it is run and where its output goes.

The script is started on every rank as torchrun would start it. Which strategy its DistributedOptimizer takes, and where
it records, stands in the environment and goes before what the script says.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from outpace.errors import InvalidRules, OutpaceError, RankFailed, TraceInvalid
from outpace.job.environment import LOG_DIR, STRATEGY, whereami
from outpace.launching.spawn import spawn
from outpace.observe.reader import read_trace
from outpace.race.figures import attempt_of
from outpace.race.result import Attempt
from outpace.race.settings import Settings
from outpace.race.systems import BASELINES
from outpace.workloads.base import Metric

METRIC = Metric("training loss", higher_is_better=False)  #: all that is known of a script, if it gives step(loss=...)


def check_script(settings: Settings, systems: list[str]) -> None:
    """Raises what is wrong, before anything is started."""
    if not Path(str(settings.script)).is_file():
        raise InvalidRules(f"there is no script {settings.script}: nothing was started")
    if settings.imbalance != "none":
        raise InvalidRules("a script is as uneven as it is: --imbalance slows down the built-in workloads only")
    given = [f"--{name}" for name in ("epochs", "rounds", "seconds") if getattr(settings, name) is not None]
    if given:
        raise InvalidRules(f"a script ends when it ends: {given[0]} is for the built-in workloads only")
    foreign = [name for name in systems if name.partition(":")[0] in BASELINES]
    if foreign:
        raise InvalidRules(
            f"{foreign[0]} cannot run your script, which makes a DistributedOptimizer; compare with allreduce, which "
            "waits for everybody as DDP does"
        )


def run_script(name: str, settings: Settings, attempt: Attempt, log_dir: Path) -> Attempt:
    """Runs it to its end on all ranks. Blocks; raises `RankFailed` if a rank failed."""
    log_dir.mkdir(parents=True, exist_ok=True)
    environment = {STRATEGY: name, LOG_DIR: str(log_dir.absolute())}
    ended = spawn(_run, settings.ranks, (settings.script, settings.arguments, log_dir.absolute()), environment)
    if None in ended:
        raise RankFailed(f"rank {ended.index(None)} was killed while it ran the script", ended.index(None))
    try:
        return attempt_of(attempt, read_trace(log_dir))
    except TraceInvalid as error:
        raise OutpaceError(
            "the script came to its end, but recorded no step: it made no outpace.DistributedOptimizer, or never "
            f"called its step(). Its output is in {log_dir}"
        ) from error


def _run(script: str, arguments: tuple[str, ...], log_dir: Path) -> bool:
    """In each rank's process. Its output goes to a file, so that several ranks and strategies can be told apart."""
    output = os.open(log_dir / f"output-{whereami().rank:05d}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
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
