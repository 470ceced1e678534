"""The course of a race: every system in turn, as often as asked. Owns what is kept of it while it runs."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from outpace.errors import OutpaceError
from outpace.imbalance import imbalance
from outpace.race.directory import save
from outpace.race.memory import check_memory
from outpace.race.result import Attempt, Entry, Race
from outpace.race.script import METRIC, check_script, run_script
from outpace.race.settings import Settings
from outpace.race.systems import system
from outpace.race.trial import run_workload
from outpace.workloads import workload

SYSTEMS = ("ddp", "allreduce", "eager-majority", "eager-solo", "wagma", "nonblocking")
SCRIPT_SYSTEMS = ("allreduce", "eager-majority", "eager-solo")
FAILURE = "failure.txt"  #: in the directory of an attempt that failed


@dataclass(frozen=True)
class Turn:
    """A system that is about to run."""

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
        workload(settings.workload, settings.seed).batch(0, 0, settings.ranks)
        imbalance(settings.imbalance).compute_s(0, settings.ranks, 0, settings.compute_ms / 1000)
    check_memory(settings.ranks)


def run_race(settings: Settings, systems: Sequence[str], command: str, run_dir: Path, watch: Watch) -> Race:
    """Runs all systems and returns what they found; Ctrl-C ends the current one and keeps what is there. Blocks.

    After every attempt, race.json holds all that is known.
    """
    race = _start(settings, systems, command)
    save(race, run_dir)
    try:
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
    from outpace import __version__

    metric = METRIC if settings.script is not None else workload(settings.workload, settings.seed).metric
    entries = tuple(Entry(name, system(name).title) for name in systems)
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    began = datetime.now().astimezone().isoformat(timespec="seconds")
    return Race(settings, command, metric, entries, began, machine, __version__)


def _attempt(settings: Settings, turn: Turn) -> Attempt:
    """What became of it. A failure is told in words, and its whole text kept beside the recording."""
    attempt = Attempt(settings.seed + turn.repetition, turn.directory.name)
    run = run_workload if settings.script is None else run_script
    try:
        return run(turn.entry.system, settings, attempt, turn.directory)
    except OutpaceError as error:
        turn.directory.mkdir(exist_ok=True)
        (turn.directory / FAILURE).write_text(f"{error}\n", encoding="utf-8")
        return replace(attempt, error=str(error).strip().partition("\n")[0])


def _with(race: Race, index: int, attempt: Attempt) -> Race:
    entries = list(race.entries)
    entries[index] = replace(entries[index], attempts=(*entries[index].attempts, attempt))
    return replace(race, entries=tuple(entries))


def _directory(entry: Entry, index: int, repetition: int, settings: Settings) -> str:
    """In the order of the race, and told by its name."""
    name = re.sub(r"[^A-Za-z0-9.=-]+", "_", entry.system)[:60]
    repeated = f"-seed-{settings.seed + repetition}" if settings.repeat > 1 else ""
    return f"{index + 1:02d}-{name}{repeated}"
