"""`outpace advise`: what a recorded run loses to waiting, and which strategy would gain most. Owns its options."""

from __future__ import annotations

import argparse
import json
from typing import Any

from outpace.cli.advise_report import print_report, to_json
from outpace.cli.parser import add_data, paragraph
from outpace.cli.progress import watcher
from outpace.observe.reader import read_trace
from outpace.simulation import Scenario, Timing, simulate_timing
from outpace.simulation.advice import COMPARED, advise, replayed
from outpace.simulation.scenario import SHARED

DESCRIPTION = """
Reads what a run recorded, says how much of its time its ranks waited for each other, and replays their computing in
simulated time under each strategy. Ends with one recommendation and its reasons, which may be to change nothing. Unless
you say --data shared, each rank has its own part of the data, and what one pool for all would gain is shown beside it.
A run is recorded by outpace.record(optimizer, "runs/x") in a loop with torch's DDP, or by DistributedOptimizer(...,
log_dir="runs/x").
"""


def add(commands: Any) -> None:
    """Describes the command."""
    about = "what a recorded run loses to waiting, and what would help"
    parser = commands.add_parser("advise", help=about, description=paragraph(DESCRIPTION))
    parser.add_argument("path", metavar="TRACE", help="directory of the recording, or one rank's file")
    add_data(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of words")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Reads, simulates and reports. Blocks for a few seconds; returns the exit code."""
    trace = read_trace(arguments.path)
    scenario = replayed(trace, arguments.data)
    runs = [(name, data) for data in dict.fromkeys((arguments.data, SHARED)) for name in COMPARED]
    titles = [name if data == arguments.data else f"{name}, data {data}" for name, data in runs]
    with watcher(titles, scenario.ranks * scenario.steps) as watch:

        def shown(name: str, replay: Scenario) -> Timing:
            with watch.follow(runs.index((name, replay.data))) as show:
                show(0, "replaying")
                return simulate_timing(name, replay, lambda done: show(done, ""))

        advice = advise(trace, arguments.data, shown)
    if arguments.json:
        print(json.dumps(to_json(arguments.path, trace, advice), indent=2))
    else:
        print_report(trace, advice)
    return 0
