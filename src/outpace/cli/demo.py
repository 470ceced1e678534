"""`outpace demo`: the gain on this machine, in under two minutes. Owns its options and the order of things."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from outpace.cli.demo_report import SYSTEMS, Comparison, print_report, title, to_json
from outpace.cli.parser import add_settings
from outpace.cli.progress import ShowStep, from_rank_0, watcher
from outpace.imbalance import imbalance
from outpace.workloads.hyperplane import check_world
from outpace.workloads.systems import DDP, check_system
from outpace.workloads.trial import Outcome, Settings, run_trial

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
    parser = commands.add_parser("demo", help="the gain on this machine", description=DESCRIPTION, epilog=EPILOG)
    add_settings(
        parser,
        Settings(),
        SYSTEMS,
        ranks="processes",
        steps="steps of each rank",
        compute="emulated computing of a step",
        strategies=f"what to compare, between commas; {DDP} is torch's own",
        seed="of data and imbalance",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Trains under each system in turn and reports. Blocks; returns the exit code."""
    comparison = _checked(arguments)
    with watcher([title(name) for name in comparison.systems], comparison.settings.steps) as watch:
        comparison.run(watch, partial(_train, comparison.settings))
    return comparison.report(arguments.json, to_json, print_report)


def _checked(arguments: argparse.Namespace) -> Comparison:
    """Raises what is wrong before any process is started."""
    settings = Settings(arguments.ranks, arguments.steps, arguments.compute_ms, arguments.imbalance, arguments.seed)
    check_world(settings.ranks)
    imbalance(settings.imbalance).compute_s(0, settings.ranks, 0, settings.compute_ms / 1000)
    systems = arguments.strategies or list(SYSTEMS)
    for name in systems:
        check_system(name, settings.ranks)
    return Comparison(settings, systems)


def _train(settings: Settings, name: str, show: ShowStep) -> Outcome:
    with from_rank_0(show) as pipe:
        return run_trial(name, settings, pipe)
