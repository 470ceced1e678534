"""`outpace trace`: what a recorded run spent its time on. Owns its options and the order of things."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from outpace.cli.trace_report import print_report, to_json
from outpace.errors import InvalidRules
from outpace.observe.perfetto import write_chrome
from outpace.observe.reader import read_trace

DESCRIPTION = """
Shows how long each rank of a recorded run computed and waited, and which rank was the slowest. A run is recorded by
DistributedOptimizer(..., log_dir="runs/x"), or by outpace.record(optimizer, "runs/x") in a loop with torch's DDP.
"""


def add(commands: Any) -> None:
    """Describes the command."""
    parser = commands.add_parser("trace", help="what a recorded run spent its time on", description=DESCRIPTION)
    option = parser.add_argument
    option("path", metavar="RUN_DIR", help="directory of the recording, or one rank's file")
    option("-o", "--perfetto", metavar="FILE", help="also write a timeline for https://ui.perfetto.dev")
    option("--json", action="store_true", help="print one JSON document instead of a table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Reads, exports and reports. Returns the exit code."""
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
