"""The `outpace` command. Owns the exit codes: 0 done, 1 the run failed, 2 asked wrongly, 130 interrupted (by Ctrl-C).

parser.py has the options of all commands; the file of the command that was asked for is imported when they are read.
Most need torch, which takes seconds, and help does not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from outpace.cli.parser import command_line
from outpace.errors import InvalidRules, OutpaceError, TraceInvalid, UnknownName

INTERRUPTED = 130  #: what shells expect after Ctrl-C


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else list(argv)
    parser = command_line()
    if not given:
        parser.print_help()
        return 0
    arguments = parser.parse_args(given)
    file, _, function = arguments.runs.partition(".")
    try:
        return int(getattr(import_module(f"outpace.cli.{file}"), function)(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED
    except OutpaceError as error:
        print(f"outpace {arguments.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, (InvalidRules, TraceInvalid, UnknownName)) else 1
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # before 3.12, where it came while a class was being made
            return INTERRUPTED
        raise
