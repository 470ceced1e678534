"""`outpace run`: a training script on so many ranks of this machine. Owns its options and what is said at the end."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

from outpace.cli.parser import at_least_one, paragraph, quantity, whole_number
from outpace.errors import InvalidRules
from outpace.job.machine import check_memory
from outpace.launching.child import FIRST_S, HEALTHY_S, LONGEST_S, WINDOW_S, say
from outpace.launching.supervisor import Job, Supervisor

DESCRIPTION = """
Runs a training script on this machine as torchrun does, once for each rank. A rank that dies is restarted, alone:
the others go on, and it takes over their weights, optimizer state and round, and contributes from there.
"""
RESTARTING = f"""
A rank dies if it is killed, raises or exits with a code other than 0. It is restarted after {FIRST_S} s, twice
that the next time and so on up to {LONGEST_S:.0f} s; after a life of {HEALTHY_S:.0f} s, after {FIRST_S} s again. If
every rank raises before training has begun, or no rank is left to take the weights from, the run ends. A script that
continues where the others are begins with `for step in range(optimizer.stats.round, steps)`.
"""
ENDING = """
SIGINT (Ctrl-C), SIGTERM and SIGHUP are passed on to the ranks; a second one kills them at once. The traceback of the
rank that ended the run is repeated last.
"""
CODES = """exit codes:
  0    every rank finished
  1    a rank failed for good, or too few were left (BelowQuorum)
  2    the command line is wrong; nothing was started
  129, 130, 143    ended by SIGHUP, SIGINT (Ctrl-C) or SIGTERM"""
USUAL = Job(1, ())

seconds = quantity("seconds")


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="run a training script; a rank that dies is restarted and rejoins",
        usage="outpace run -n N [options] script.py [arguments of the script]",
        description=paragraph(DESCRIPTION),
        epilog="\n\n".join((paragraph(RESTARTING), paragraph(ENDING), CODES)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    about = "Starts N processes."
    option("-n", "--ranks", "--nproc-per-node", type=at_least_one, required=True, metavar="N", help=about)
    about = f"Restarts a rank up to K times within {WINDOW_S / 60:.0f} minutes; 0 ends the run (default: %(default)d)."
    option("--max-restarts", type=whole_number, default=USUAL.max_restarts, metavar="K", help=about)
    about = (
        "Ends the run with BelowQuorum when fewer ranks live or have finished (default: what the script says, else 1)."
    )
    option("--min-ranks", type=at_least_one, metavar="M", help=about)
    about = "Kills ranks that have not ended S seconds after they were asked to (default: %(default)g)."
    option("--stop-within", type=seconds, default=USUAL.stop_within_s, metavar="S", help=about)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("-m", "--module", action="store_true", help="Takes the script for the name of a module.")
    kind.add_argument("--no-python", action="store_true", help="Takes the script for a program of its own, not Python.")
    option("script", metavar="script.py", help="The script that each rank runs.")
    option("arguments", nargs=argparse.REMAINDER, metavar="...", help="Arguments for the script.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.min_ranks is not None and arguments.min_ranks > arguments.ranks:
        raise InvalidRules(f"--min-ranks {arguments.min_ranks} is more than the {arguments.ranks} ranks of -n")
    command = [*_program(arguments), *arguments.arguments]
    check_memory(arguments.ranks)
    limits = arguments.max_restarts, arguments.min_ranks, arguments.stop_within
    outcome = Supervisor(Job(arguments.ranks, command, *limits)).run()
    if outcome.why:
        words = f". Its last words:\n{outcome.words}" if outcome.words else ""
        say(f"{outcome.why}{words}")
    return outcome.code


def _program(arguments: argparse.Namespace) -> list[str]:
    """What runs the script. Raises if there is no such thing, before anything is started."""
    script = arguments.script
    if arguments.no_python:
        what, is_there, command = "program", shutil.which(script) is not None, [script]
    elif arguments.module:
        what, is_there, command = "module", _has_module(script), [sys.executable, "-u", "-m", script]
    else:
        what, is_there, command = "script", Path(script).exists(), [sys.executable, "-u", script]
    if not is_there:
        raise InvalidRules(f"there is no {what} {script}: nothing was started")
    return command


def _has_module(name: str) -> bool:
    """Whether a rank would find it. Its first package is looked for only: no code of it is run here."""
    sys.path.insert(0, "")  # as `python -m` has it
    try:
        return importlib.util.find_spec(name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path.remove("")
