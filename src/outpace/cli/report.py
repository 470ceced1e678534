"""`outpace report`: the page of a race, made again. Owns its options."""

from __future__ import annotations

import argparse
from typing import Any

from outpace.race.report.page import write

DESCRIPTION = "Makes the report of a race again from its run directory: one HTML file that needs nothing else."


def add(commands: Any) -> None:
    """Describes the command."""
    parser = commands.add_parser("report", help="make the report of a race again", description=DESCRIPTION)
    parser.add_argument("run_dir", metavar="RUN_DIR", help="what `outpace race` said it kept everything in")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the page and says where it is. Returns the exit code."""
    print(write(arguments.run_dir))
    return 0
