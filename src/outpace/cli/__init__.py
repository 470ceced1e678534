"""The `outpace` command. Owns the exit codes: 0 done, 1 the run failed, 2 asked wrongly, 130 interrupted (by Ctrl-C).

One file for each command; each has `add(commands)`, which describes its options, and a function that runs it. Only the
file of the command that was asked for is imported: most need torch, which takes seconds, and `outpace --help` does not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from outpace.errors import InvalidRules, OutpaceError, TraceInvalid, UnknownName
from outpace.version import __version__

INTERRUPTED = 130  #: what shells expect after Ctrl-C
_ONE_OF_THEM = "or one with its options and their defaults"
#: by name: the file and function that describe it, and what `outpace --help` says of it
COMMANDS = {
    "run": ("run.add", "run a training script; a rank that dies is restarted and rejoins"),
    "race": ("race.add", "train under several strategies on this machine, and see who wins"),
    "report": ("race.add_report", "make the report of a race again"),
    "simulate": ("simulate.add", "which strategy would be faster on a cluster you describe"),
    "trace": ("trace.add", "what a recorded run spent its time on"),
    "watch": ("watch.add", "a running job: who is late, and who waits"),
    "advise": ("advise.add", "what a recorded run loses to waiting, and what would help"),
    "doctor": ("doctor.add", "what this machine offers to training, and what to change"),
    "strategies": ("catalogue.add", f"every strategy, {_ONE_OF_THEM}"),
    "imbalances": ("catalogue.add", f"every imbalance, {_ONE_OF_THEM}"),
    "networks": ("catalogue.add", f"every network, {_ONE_OF_THEM}"),
    "workloads": ("catalogue.add", f"every workload, {_ONE_OF_THEM}"),
    "codecs": ("catalogue.add", f"every codec, {_ONE_OF_THEM}"),
}


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose error messages are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else list(argv)
    if not given:
        parser_of().print_help()
        return 0
    command = next((word for word in given if word in COMMANDS), "")
    try:
        arguments = parser_of(command).parse_args(given)
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED
    except (InvalidRules, TraceInvalid, UnknownName) as error:
        return _report_error(command, error, 2)
    except OutpaceError as error:
        return _report_error(command, error, 1)
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # before 3.12, where it came while a class was being made
            return INTERRUPTED
        raise


def parser_of(*described: str) -> OneLineParser:
    """Knows the options of these commands, and the names of all."""
    parser = OneLineParser(
        prog="outpace",
        description="PyTorch data-parallel training that does not wait for the slowest rank.",
        epilog="`outpace COMMAND --help` says more about a command.",
    )
    parser.add_argument("--version", action="version", version=f"outpace {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (place, about) in COMMANDS.items():
        if name in commands.choices:
            continue
        siblings = [other for other, (its, _) in COMMANDS.items() if its == place]
        if any(other in described for other in siblings):
            module, _, function = place.partition(".")
            getattr(import_module(f"outpace.cli.{module}"), function)(commands)
        else:
            commands.add_parser(name, help=about)
    return parser


def _report_error(command: str, error: OutpaceError, code: int) -> int:
    print(f"outpace {command}: {error}", file=sys.stderr)
    return code
