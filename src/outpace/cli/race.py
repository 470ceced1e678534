"""`outpace race`: one workload under several systems on real ranks, and who wins. Owns its options and checks."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from outpace.cli.comparison import replay
from outpace.cli.parser import add_settings, at_least_one, listing, paragraph, quantity
from outpace.cli.race_report import print_report, print_result, to_json
from outpace.cli.race_view import watcher
from outpace.errors import InvalidRules
from outpace.imbalance import table as imbalance_table
from outpace.race import directory
from outpace.race.report.page import write
from outpace.race.run import SCRIPT_SYSTEMS, SYSTEMS, check, run_race
from outpace.race.settings import Settings
from outpace.race.systems import table as system_table
from outpace.workloads import table as workload_table

DESCRIPTION = """
Trains a workload under torch's own systems and under outpace's strategies, one after the other, in real processes on
this machine; shows who is late while it runs, and at the end how long each took, how long its ranks waited and how good
its model is. All of it is kept in a run directory, with a report to open in a browser.
"""
EPILOG = """
Unless --compute-ms is 0, computing is emulated, because the ranks cannot all compute at once on a few cores: a step
makes its real data and forward pass, sleeps, and runs its real backward pass in time. Options go behind a
name: --strategies ddp,eager:quorum=3,late=drop --imbalance random:k=1,delay_ms=200
"""
SCRIPT = """
A script of your own (--script train.py -- its arguments) runs once for each strategy, whichever its
DistributedOptimizer names. If it calls step(loss=...), the loss is drawn.
"""
USUAL = Settings()


def add(commands: Any) -> None:
    """Describes the command."""
    lists = (
        listing("workloads", workload_table()),
        listing("systems", system_table()),
        listing("imbalance models", imbalance_table()),
    )
    parser = commands.add_parser(
        "race",
        help="train under several strategies on this machine, and see who wins",
        description=paragraph(DESCRIPTION),
        epilog="\n\n".join((*lists, paragraph(EPILOG), paragraph(SCRIPT))),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options(parser)
    parser.set_defaults(run=run)


def _add_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--workload", default=USUAL.workload, metavar="NAME", help="what to train (%(default)s)")
    option("--script", metavar="FILE", help="a training script of your own instead")
    option("arguments", nargs="*", metavar="ARGUMENT", help="of the script, after --")
    add_settings(
        parser,
        USUAL,
        SYSTEMS,
        ranks="processes",
        compute="emulated computing of a mean step, in milliseconds; 0 computes for real, for ranks up to cores",
        strategies="what to compare, between commas",
        seed="of data, model and imbalance",
    )
    option("--epochs", type=quantity("epochs"), metavar="N", help="how long to train (what suits the workload)")
    option("--rounds", type=at_least_one, metavar="N", help="instead: mini-batches of each rank")
    option("--seconds", type=quantity("seconds"), metavar="S", help="instead: the same time for every system")
    option("--target", type=float, metavar="M", help="metric to take the time to (98%% of what DDP learns)")
    option("--repeat", type=at_least_one, default=1, metavar="N", help="times, each with the next seed (%(default)d)")
    option("--run-dir", metavar="DIR", help="where to keep everything (runs/race-DATE-TIME)")


def run(arguments: argparse.Namespace) -> int:
    """Runs the race, keeps it and shows it. Blocks; returns the exit code: 1 if no system came to its end."""
    settings = _settings(arguments)
    systems = list(dict.fromkeys(arguments.strategies or (SYSTEMS if settings.script is None else SCRIPT_SYSTEMS)))
    check(settings, systems)
    run_dir = directory.make(arguments.run_dir)
    race = run_race(settings, systems, _command(settings, systems), run_dir, watcher(settings))
    report = write(run_dir)
    if arguments.json:
        print_result(to_json(race, run_dir, report))
    else:
        print_report(race, report)
    if race.interrupted:
        return 130
    return 0 if race.finished else 1


def _settings(arguments: argparse.Namespace) -> Settings:
    given = {field.name: getattr(arguments, field.name) for field in fields(Settings)}
    if arguments.script is None and arguments.arguments:
        raise InvalidRules(f"{arguments.arguments[0]!r} is an argument for a script; name one with --script")
    if arguments.script is not None and arguments.workload != USUAL.workload:
        raise InvalidRules("--workload and --script are two races; give one of them")
    return Settings(**{**given, "arguments": tuple(arguments.arguments)})


def _command(settings: Settings, systems: list[str]) -> str:
    usual = SYSTEMS if settings.script is None else SCRIPT_SYSTEMS
    others = {} if tuple(systems) == usual else {"strategies": ",".join(systems)}
    return replay("race", settings, USUAL, **others)
