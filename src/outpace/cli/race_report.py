"""What a race's terminal shows at the end: a table for people, a document for scripts. Computes nothing but ratios."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outpace.cli.comparison import notes_grid
from outpace.race.directory import plain
from outpace.race.report.outcome import target_text
from outpace.race.report.words import verdict
from outpace.race.result import Entry, Race


def to_json(race: Race, run_dir: Path, report: Path) -> dict[str, Any]:
    """The table's figures, in plain values. All that was measured is in the run directory."""
    return {
        "outpace": race.outpace,
        "command": race.command,
        "run_dir": str(run_dir),
        "report": str(report),
        "interrupted": race.interrupted,
        "metric": race.metric.name,
        "target": race.target,
        "verdict": verdict(race),
        "systems": [_entry(race, entry) for entry in race.entries if entry.attempts],
    }


def _entry(race: Race, entry: Entry) -> dict[str, Any]:
    if not entry.finished:
        return {"system": entry.system, "error": entry.error}
    baseline = None if race.baseline is None else race.baseline.system
    return {
        "system": entry.system,
        "error": None,
        "attempts": len(entry.finished),
        "seconds": entry.seconds,
        "baseline": baseline,
        "speedup": race.speedup(entry),
        "seconds_to_target": race.seconds_to_target(entry),
        "samples_per_s": entry.mean(lambda attempt: attempt.samples_per_s),
        "final_loss": entry.mean(lambda attempt: attempt.curve[-1].loss) if entry.final is not None else None,
        "final_metric": entry.final,
        "finals": [attempt.curve[-1].metric for attempt in entry.finished if attempt.curve],
        "waited_s": entry.mean(lambda attempt: attempt.waited_s),
        "late_share": entry.late_share,
        "staleness": entry.staleness,
        "dropped": sum(rank.dropped for attempt in entry.finished for rank in attempt.ranks),
        "slowest_share": entry.mean(lambda attempt: attempt.slowest.share),
    }


def print_result(document: dict[str, Any]) -> None:
    """One JSON document on standard output."""
    print(json.dumps(plain(document), indent=2))


def print_report(race: Race, report: Path) -> None:
    """The table, what its columns mean, who won, and where to look further, on standard output."""
    console = Console(highlight=False, markup=False, emoji=False)
    if race.interrupted:
        ran = sum(bool(entry.finished) for entry in race.entries)
        console.print(f"Interrupted: {ran} of {len(race.entries)} systems ran to their end.", style="yellow")
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
    """The systems that ran so far, one a row."""
    s = race.settings
    computing = f", {s.compute_ms:g} ms of computing emulated" if s.is_emulated else ""
    title = f"{s.trains}, {s.ranks} ranks, imbalance {s.imbalance}{computing}"
    grid = Table(title=title, title_style="bold", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    grid.add_column("system", overflow="fold")
    for name in ("time", "speed-up", "to target", race.metric.name, "waited", "late", "share"):
        grid.add_column(name, justify="right", no_wrap=True)
    for entry in race.entries:
        if entry.finished:
            grid.add_row(*_cells(race, entry), style="bold green" if entry is race.winner else None)
        elif entry.attempts:
            grid.add_row(entry.title, "failed", style="red")
    return grid


def failures(race: Race) -> list[Text]:
    """What went wrong, a line for each system that came to no end: too long for a table."""
    failed = [entry for entry in race.entries if entry.error is not None]
    return [Text(f"{entry.title} failed: {entry.error}", style="red") for entry in failed]


def _cells(race: Race, entry: Entry) -> list[str]:
    speedup, to_target = race.speedup(entry), race.seconds_to_target(entry)
    return [
        entry.title,
        f"{entry.seconds:.1f} s",
        "-" if speedup is None else f"{speedup:.2f}x",
        "-" if to_target is None else f"{to_target:.1f} s",
        "-" if entry.final is None else race.metric.text(entry.final),
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
    notes["time"] = "training only, without starting processes, until the last rank was done"
    if race.baseline is not None:
        notes["speed-up"] = f"in samples a second, over {race.baseline.title}"
    if race.target is not None:
        notes["to target"] = f"until rank 0's model was at {target_text(race)}"
    notes[race.metric.name] = "of the training itself" if s.script else "at the end, on data that no rank trains on"
    notes["waited"] = "for other ranks, and communication: of each rank, in the mean"
    dropped = sum(rank.dropped for e in race.finished for attempt in e.finished for rank in attempt.ranks)
    notes["late"] = (
        "share of contributions taken in by a later round than the one they were computed for; "
        f"{f'{dropped:,}' if dropped else 'none'} dropped"
    )
    notes["share"] = f"of the slowest rank in what was applied, where {1 / s.ranks:.1%} would be even"
    return notes
