"""`outpace demo`: the gain on this machine, in under two minutes. Owns its options and the order of things."""

from __future__ import annotations

import argparse
import json
from typing import Any

from outpace.cli.demo_report import SYSTEMS, Comparison, print_report, title, to_json
from outpace.cli.parser import at_least_one, milliseconds, name_list
from outpace.cli.progress import Watcher, watcher
from outpace.imbalance import imbalance
from outpace.workloads.hyperplane import check_world
from outpace.workloads.systems import DDP, check_system
from outpace.workloads.trial import Settings, run_trial

DESCRIPTION = """
Trains a hyperplane regression (8,193 parameters, batch of 2,048) under torch's DistributedDataParallel and under
outpace's strategies, one after the other, in real processes on this machine, while random ranks are slowed down. Shows
how long each took, how long its ranks waited, and what loss it reached. With the defaults: about 75 seconds.
"""
EPILOG = """
Computing is emulated, because the ranks cannot all compute at once on a few cores: a step makes its real data and
forward pass, sleeps until --compute-ms have passed since the step began, and then runs its real backward pass.
"""


def add(commands: Any) -> None:
    """Describes the command."""
    common = Settings()
    parser = commands.add_parser("demo", help="the gain on this machine", description=DESCRIPTION, epilog=EPILOG)
    option = parser.add_argument
    option("--ranks", type=at_least_one, default=common.ranks, metavar="N", help="processes (%(default)s)")
    option("--steps", type=at_least_one, default=common.steps, metavar="N", help="steps of each rank (%(default)s)")
    option(
        "--compute-ms",
        type=milliseconds,
        default=common.compute_ms,
        metavar="MS",
        help="emulated computing of a step (%(default)g)",
    )
    option(
        "--imbalance",
        default=common.imbalance,
        metavar="MODEL",
        help="who is slower and by how much, or none (%(default)s)",
    )
    option(
        "--strategies",
        type=name_list,
        default=",".join(SYSTEMS),
        metavar="NAMES",
        help=f"what to compare, between commas; {DDP} is torch's own (%(default)s)",
    )
    option("--seed", type=int, default=common.seed, metavar="N", help="of data and imbalance (%(default)s)")
    option("--json", action="store_true", help="print one JSON document instead of a table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Trains under each system in turn and reports. Blocks; returns the exit code."""
    comparison = _checked(arguments)
    with watcher([title(name) for name in comparison.systems], comparison.settings.steps) as watch:
        _compare(comparison, watch)
    if arguments.json:
        print(json.dumps(to_json(comparison), indent=2))
    else:
        print_report(comparison)
    return 130 if comparison.interrupted else 0


def _checked(arguments: argparse.Namespace) -> Comparison:
    """Raises what is wrong before any process is started."""
    settings = Settings(arguments.ranks, arguments.steps, arguments.compute_ms, arguments.imbalance, arguments.seed)
    check_world(settings.ranks)
    imbalance(settings.imbalance).delay_s(0, settings.ranks, 0)
    for name in arguments.strategies:
        check_system(name, settings.ranks)
    return Comparison(settings, arguments.strategies)


def _compare(comparison: Comparison, watch: Watcher) -> None:
    """Runs one system after the other; Ctrl-C ends the current one and keeps what is there."""
    try:
        for index, name in enumerate(comparison.systems):
            with watch.follow(index) as pipe:
                comparison.outcomes.append(run_trial(name, comparison.settings, pipe))
    except KeyboardInterrupt:
        comparison.interrupted = True
