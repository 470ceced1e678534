"""`outpace race`: one workload under several systems on real ranks, and who wins; `outpace report`: its page again."""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.table import Table
from rich.text import Text

from outpace.cli.comparison import NAME_WIDTH, Fitting, notes_grid, replay
from outpace.cli.watch import line, view
from outpace.errors import InvalidRules
from outpace.observe.live import Follower
from outpace.race import directory
from outpace.race.directory import plain
from outpace.race.report.page import write
from outpace.race.report.table import counted
from outpace.race.report.words import target_text, verdict
from outpace.race.result import Entry, Race, Settings
from outpace.race.run import SCRIPT_SYSTEMS, SYSTEMS, Turn, Watch, check, run_race, steps_of

USUAL = Settings()
LINE_EVERY_S = 10.0  #: how often a log gets a line about a running system
LOOK_EVERY_S = 0.25


def run(arguments: argparse.Namespace) -> int:
    """Runs the race, keeps it and shows it. Blocks; returns the exit code: 1 if no system finished."""
    settings = _settings(arguments)
    systems = list(dict.fromkeys(arguments.strategies or (SYSTEMS if settings.script is None else SCRIPT_SYSTEMS)))
    check(settings, systems)
    run_dir = directory.make(arguments.run_dir)
    say = Console(stderr=True, highlight=False, markup=False, emoji=False, quiet=arguments.quiet)
    watch = watcher(settings, say)
    race = run_race(settings, systems, _command(settings, systems), run_dir, watch, say.print)
    report = write(run_dir)
    if arguments.json:
        print(json.dumps(plain(to_json(race, run_dir, report)), indent=2))
    else:
        print_report(race, report)
    if race.interrupted:
        return 130
    return 0 if race.finished else 1


def write_report(arguments: argparse.Namespace) -> int:
    print(write(arguments.run_dir))
    return 0


def _settings(arguments: argparse.Namespace) -> Settings:
    given = {field.name: getattr(arguments, field.name) for field in fields(Settings)}
    if arguments.script is None and arguments.arguments:
        raise InvalidRules(f"{arguments.arguments[0]!r} is an argument for a script; name one with --script")
    if arguments.script is not None and arguments.workload != USUAL.workload:
        raise InvalidRules("give --workload or --script, not both")
    return Settings(**{**given, "arguments": tuple(arguments.arguments)})


def _command(settings: Settings, systems: list[str]) -> str:
    usual = SYSTEMS if settings.script is None else SCRIPT_SYSTEMS
    others = {} if tuple(systems) == usual else {"strategies": ",".join(systems)}
    return replay("race", settings, USUAL, **others)


def watcher(settings: Settings, console: Console) -> Watch:
    return (_Screens if console.is_terminal and not console.quiet else _Lines)(settings, console).follow


class _Shown:
    """What both have in common: which system it is, and how long it trains."""

    def __init__(self, settings: Settings, console: Console) -> None:
        self._settings, self._console = settings, console
        steps = None if settings.script is not None else steps_of(settings)
        self._length = f", {steps:,} steps" if steps else f", {settings.seconds:g} s" if settings.seconds else ""

    def _title(self, race: Race, turn: Turn) -> str:
        again = f", {turn.repetition + 1} of {self._settings.repeat}" if self._settings.repeat > 1 else ""
        return f"{turn.entry.title} ({turn.index + 1} of {len(race.entries)} systems{again}{self._length})"


class _Screens(_Shown):
    """The table of finished systems, and below it the ranks of the running one."""

    @contextmanager
    def follow(self, race: Race, turn: Turn) -> Iterator[None]:
        follower = Follower(turn.directory)
        title = Text(self._title(race, turn), style="bold")

        def render() -> RenderableType:
            done: list[RenderableType] = [table(race), *failures(race)] if any(e.attempts for e in race.entries) else []
            return Group(*done, title, view(follower.poll()))

        with Screen(
            console=self._console,
            get_renderable=render,
            refresh_per_second=1 / LOOK_EVERY_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield


class _Lines(_Shown):
    """A line when a system begins, one now and then, and one when it has ended: for logs."""

    @contextmanager
    def follow(self, race: Race, turn: Turn) -> Iterator[None]:
        title, done = self._title(race, turn), threading.Event()
        self._say(f"{title}: starting")
        thread = threading.Thread(target=self._tell, args=(title, turn.directory, done), daemon=True)
        thread.start()
        began = time.monotonic()
        try:
            yield
        finally:
            done.set()
            thread.join()
        self._say(f"{title}: done after {time.monotonic() - began:.0f} s")

    def _tell(self, title: str, directory: Path, done: threading.Event) -> None:
        follower = Follower(directory)
        while not done.wait(LINE_EVERY_S):
            self._say(f"{title}: {line(follower.poll())}")

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def to_json(race: Race, run_dir: Path, report: Path) -> dict[str, Any]:
    """The table's figures, in plain values. All that was measured is in the run directory."""
    return {
        "outpace": race.outpace,
        "command": race.command,
        "run_dir": str(run_dir),
        "report": str(report),
        "interrupted": race.interrupted,
        "too_busy": race.was_too_busy,
        "metric": race.metric.name,
        "target": race.target,
        "verdict": verdict(race),
        "systems": [_entry(race, entry) for entry in race.entries if entry.attempts],
    }


def _entry(race: Race, entry: Entry) -> dict[str, Any]:
    if not entry.finished:
        return {"system": entry.system, "error": entry.error}
    return {
        "system": entry.system,
        "error": None,
        "attempts": len(entry.finished),
        "metric_after_equal_samples": fmean(metrics) if (metrics := race.metrics_of(entry)) else None,
        "learned_less": race.learned_less(entry),
        "learning_rate": entry.learning_rate,
        "tried": dict(entry.tried),
        "overrun": entry.mean(lambda attempt: attempt.overrun),
        "seconds": entry.seconds,
        "baseline": None if race.baseline is None else race.baseline.system,
        "speedup": race.speedup(entry),
        "seconds_to_target": race.seconds_to_target(entry),
        "samples_per_s": entry.samples_per_s,
        "final_loss": entry.mean(lambda attempt: attempt.curve[-1].loss) if entry.final is not None else None,
        "final_metric": entry.final,
        "finals": [attempt.curve[-1].metric for attempt in entry.finished if attempt.curve],
        "waited_s": entry.mean(lambda attempt: attempt.waited_s),
        "late_share": entry.late_share,
        "staleness": entry.staleness,
        "dropped": sum(rank.dropped for attempt in entry.finished for rank in attempt.ranks),
        "slowest_share": entry.mean(lambda attempt: attempt.slowest.share),
    }


def print_report(race: Race, report: Path) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    if race.interrupted:
        ran = sum(bool(entry.finished) for entry in race.entries)
        console.print(f"Interrupted: {ran} of {len(race.entries)} systems finished.", style="yellow")
    if any(entry.attempts for entry in race.entries):
        console.print()
        console.print(table(race))
        for failure in failures(race):
            console.print(failure)
        console.print(verdict(race), style="bold")
        console.print()
        console.print(notes_grid(_notes(race)))
    # Not wrapped, so that they can be copied whole.
    console.print(Text.assemble(("repeat".ljust(11), "bold"), race.command), soft_wrap=True)
    console.print(Text.assemble(("report".ljust(11), "bold"), str(report)), soft_wrap=True)


def table(race: Race) -> Table:
    s = race.settings
    computing = f", {s.compute_ms:g} ms of computing emulated" if s.is_emulated else ""
    title = f"{s.trains}, {counted(s.ranks, 'rank')}, imbalance {s.uneven}{computing}"
    grid = Fitting(title=title, title_style="bold", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    widest = max(len(entry.title.partition(":")[0]) for entry in race.entries)
    grid.add_column("system", overflow="fold", min_width=min(NAME_WIDTH, widest))
    rate = ("lr",) if s.tune else ()
    for name in (race.metric.name, "to target", *rate, "time", "speed-up", "waited", "late", "share"):
        grid.add_column(name, justify="right", no_wrap=True)
    for entry in race.entries:
        if entry.finished:
            grid.add_row(*_cells(race, entry), style="bold green" if entry is race.winner else None)
        elif entry.attempts:
            grid.add_row(entry.title, "failed", style="red")
    return grid


def failures(race: Race) -> list[Text]:
    """What went wrong, a line for each system that failed: too long for a table."""
    failed = [entry for entry in race.entries if entry.error is not None]
    return [Text(f"{entry.title} failed: {entry.error}", style="red") for entry in failed]


def _cells(race: Race, entry: Entry) -> list[str]:
    speedup, to_target, metrics = race.speedup(entry), race.seconds_to_target(entry), race.metrics_of(entry)
    return [
        entry.title,
        race.metric.text(fmean(metrics)) if metrics else "-",
        "-" if to_target is None else f"{to_target:.1f} s",
        *((f"{entry.learning_rate:g}x",) if race.settings.tune else ()),
        f"{entry.seconds:.1f} s",
        "-" if speedup is None else f"{speedup:.2f}x",
        f"{entry.mean(lambda attempt: attempt.waited_s):.1f} s",
        f"{entry.late_share:.0%}",
        f"{entry.mean(lambda attempt: attempt.slowest.share):.1%}",
    ]


def _notes(race: Race) -> dict[str, str]:
    s = race.settings
    notes = {}
    if s.is_emulated:
        notes["computing"] = (
            f"is emulated by a sleep, because {s.ranks} ranks share {os.cpu_count()} cores: a step makes its real data "
            "and forward pass, sleeps, and runs its real backward pass in time; communication is real, too"
        )
    about = "of the training itself" if s.script else "after equal samples, on data that no rank trains on"
    notes[race.metric.name] = about
    if race.target is not None:
        notes["to target"] = f"until rank 0's model was at {target_text(race)} and stayed there"
    if s.tune:
        notes["lr"] = "times the workload's learning rate: the best in simulated time, on another seed"
    notes["time"] = "training only, without starting processes, until the last rank was done"
    if race.baseline is not None:
        counted = (
            "samples a second (steps, unless the script tells step() its samples)" if s.script else "samples a second"
        )
        notes["speed-up"] = f"in {counted}, over {race.baseline.title}"
    notes["waited"] = "for other ranks, and communication: of each rank, in the mean"
    dropped = sum(rank.dropped for e in race.finished for attempt in e.finished for rank in attempt.ranks)
    late = "share of contributions taken in by a later round than the one they were computed for"
    notes["late"] = f"{late}; {f'{dropped:,}' if dropped else 'none'} dropped"
    notes["share"] = f"of the slowest rank in what was applied, where {1 / s.ranks:.1%} would be even"
    return notes
