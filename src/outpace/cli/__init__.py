"""The `outpace` command. Owns the exit codes: 0 done, 1 the run failed, 2 asked wrongly, 130 interrupted (by Ctrl-C).

One file for each command; each has `add(commands)`, which describes its options, and a function that runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from outpace.cli import advise, catalogue, race, run, simulate, trace, watch
from outpace.cli.parser import OneLineParser
from outpace.errors import InvalidRules, OutpaceError, TraceInvalid, UnknownName
from outpace.version import __version__

INTERRUPTED = 130  #: what shells expect after Ctrl-C


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED
    except (InvalidRules, TraceInvalid, UnknownName) as error:
        return _report_error(arguments.command, error, 2)
    except OutpaceError as error:
        return _report_error(arguments.command, error, 1)


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="outpace",
        description="PyTorch data-parallel training that does not wait for the slowest rank.",
        epilog="`outpace COMMAND --help` says more about a command.",
    )
    parser.add_argument("--version", action="version", version=f"outpace {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (run.add, race.add, race.add_report, simulate.add, trace.add, watch.add, advise.add, catalogue.add):
        add(commands)
    return parser


def _report_error(command: str, error: OutpaceError, code: int) -> int:
    print(f"outpace {command}: {error}", file=sys.stderr)
    return code
