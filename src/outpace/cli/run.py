"""`outpace run`: a training script on so many ranks of this machine. Owns its checks and what is said at the end."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from pathlib import Path

from outpace.errors import InvalidRules
from outpace.job.machine import check_memory
from outpace.launching.child import say
from outpace.launching.supervisor import Job, Supervisor


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
