"""`outpace trace`: what a recorded run spent its time on. Owns its options and the order of things."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from outpace.errors import InvalidRules
from outpace.observe import figures
from outpace.observe.perfetto import write_chrome
from outpace.observe.reader import read_trace
from outpace.observe.schema import Trace
from outpace.version import __version__

SHOWN = 8  #: changes of the quorum, the last ones


def run(arguments: argparse.Namespace) -> int:
    trace = read_trace(arguments.path)
    if arguments.perfetto is not None:
        _check_target(Path(arguments.perfetto), Path(arguments.path))
        write_chrome(trace, arguments.perfetto)
    if arguments.json:
        print(json.dumps(to_json(trace, arguments.perfetto), indent=2))
    else:
        print_report(trace, arguments.perfetto)
    return 0


def _check_target(target: Path, source: Path) -> None:
    """Refuses to write the export over the recording."""
    recorded = source.glob("*.jsonl") if source.is_dir() else [source]
    if target.resolve() in {file.resolve() for file in recorded}:
        raise InvalidRules(f"{target} is the recording itself; give another file for the export")


def to_json(trace: Trace, export: str | None) -> dict[str, Any]:
    return {
        "outpace": __version__,
        "world": trace.world,
        "strategy": trace.strategy,
        "payload_bytes": trace.payload_bytes,
        "seconds": _seconds(trace),
        "rounds": len(trace.rounds),
        "communication_s": figures.communication_s(trace),
        "slowest_over_mean": figures.slowest_over_mean(trace),
        "slowest_rank": figures.slowest_rank(trace),
        "quorums": [{"round": number, "quorum": quorum} for number, quorum in _quorums(trace)],
        "ranks": _ranks(trace),
        "skipped": list(trace.skipped),
        "export": export,
    }


def _ranks(trace: Trace) -> list[dict[str, Any]]:
    compute, waiting = figures.compute_s(trace), figures.waiting_s(trace)
    applying, late = figures.apply_s(trace), figures.late_steps_share(trace)
    return [
        {
            "rank": rank,
            "host": row.host,
            "steps": len(row.steps),
            "compute_s": compute[rank],
            "waiting_s": waiting[rank],
            "apply_s": applying[rank],
            "late_share": late[rank],
        }
        for rank, row in trace.ranks.items()
    ]


def _quorums(trace: Trace) -> list[tuple[int, str]]:
    """What the quorum was changed to, where it follows the arrivals."""
    return [(taken.number, taken.quorum) for taken in trace.rounds if taken.quorum]


def print_report(trace: Trace, export: str | None) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    console.print()
    console.print(_table(trace))
    slowest, ratio = figures.slowest_rank(trace), figures.slowest_over_mean(trace)
    console.print(f"slowest        rank {slowest}: computes {ms(figures.compute_s(trace)[slowest])} a step")
    console.print(f"imbalance      in a step, the slowest rank computes {ratio:.2f} times the mean")
    console.print(f"communication  {ms(figures.communication_s(trace))} a step: what the last rank to be ready waits")
    for number, quorum in _quorums(trace)[-SHOWN:]:
        console.print(f"quorum         from round {number}: {quorum}", soft_wrap=True)
    for words in trace.skipped:
        console.print(f"left out       {words}", style="yellow", soft_wrap=True)
    if export is not None:
        where = f"{export}: open it at https://ui.perfetto.dev or chrome://tracing"
        console.print(f"timeline       {where}", soft_wrap=True)


def _table(trace: Trace) -> Table:
    found = f"{len(trace.ranks)} of {trace.world} ranks" if len(trace.ranks) < trace.world else f"{trace.world} ranks"
    title = f"{found}, strategy {trace.strategy}, {_seconds(trace):.1f} s; means over steps"
    table = Table(title=title, title_style="bold")
    for name in ("rank", "steps", "computing", "waiting", "applying", "late"):
        table.add_column(name, justify="right")
    table.add_column("host")
    slowest = figures.slowest_rank(trace)
    for row in _ranks(trace):
        style = "bold" if row["rank"] == slowest and len(trace.ranks) > 1 else None
        means = (ms(row[name]) for name in ("compute_s", "waiting_s", "apply_s"))
        cells = (str(row["rank"]), str(row["steps"]), *means, f"{row['late_share']:.0%}", row["host"])
        table.add_row(*cells, style=style)
    return table


def _seconds(trace: Trace) -> float:
    """From the first step's beginning to the last step's end."""
    return max(step.end_ns for rank in trace.ranks.values() for step in rank.steps) / 1e9


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
