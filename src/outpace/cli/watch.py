"""`outpace watch`: a job that runs, as it runs. Owns its options, and when there is no more to see."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live as Screen
from rich.text import Text

from outpace.cli.parser import quantity
from outpace.cli.watch_view import ended, line, view, waiting
from outpace.errors import TraceInvalid
from outpace.observe.live import Follower, Live, check_directory, current_run
from outpace.race.directory import load

DESCRIPTION = """
Shows a job while it runs: how long each rank computes and waits, who is late now and by how much, the loss, and how
stale the contributions are. The job must record: DistributedOptimizer(..., log_dir="runs/x"), outpace.record(optimizer,
"runs/x"), or outpace race. It is not asked and does not notice. Ends when all ranks have finished, or with Ctrl-C.
"""

LOOK_EVERY_S = 0.25

seconds = quantity("seconds")


def add(commands: Any) -> None:
    """Describes the command."""
    parser = commands.add_parser("watch", help="a running job: who is late, and who waits", description=DESCRIPTION)
    option = parser.add_argument
    option("path", metavar="RUN_DIR", help="directory that the job records to, or that of a race")
    option("--every", type=seconds, default=10.0, metavar="S", help="where there is no terminal, a line so often (10)")
    option("--once", action="store_true", help="print one view and exit")
    option("--json", action="store_true", help="print one JSON document and exit")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Shows what there is, once or until it ends. Returns the exit code."""
    path = Path(arguments.path)
    check_directory(path)
    console = Console(highlight=False, markup=False, emoji=False)
    if arguments.json:
        print(json.dumps(Follower(current_run(path)).poll().to_json(), indent=2))
    elif arguments.once:
        console.print(view(Follower(current_run(path)).poll()))
    elif console.is_terminal:
        _on_screen(path, console)
    else:
        _in_lines(path, console, arguments.every)
    return 0


def _on_screen(path: Path, console: Console) -> None:
    shown = Text(waiting(str(path)))
    with Screen(shown, console=console, auto_refresh=False) as screen:
        for live in lives(path):
            screen.update(view(live), refresh=True)
            last = live
    console.print(ended(last))


def _in_lines(path: Path, console: Console, every_s: float) -> None:
    """A line when a run is first seen, one now and then, and one at its end."""
    said, directory = 0.0, ""
    for live in lives(path):
        now = time.monotonic()
        if live.directory != directory or now >= said + every_s:
            said, directory = now, live.directory
            console.print(line(live), soft_wrap=True)
    console.print(ended(live), soft_wrap=True)


def lives(path: Path) -> Iterator[Live]:
    """The run in this directory, looked at again and again until it has ended; in a race's, one after the other."""
    follower = Follower(current_run(path))
    while True:
        current = current_run(path)
        if current != follower.directory:
            follower = Follower(current)
        live = follower.poll()
        yield live
        if live.has_ended and (current == path or _is_race_over(path)):
            return
        time.sleep(LOOK_EVERY_S)


def _is_race_over(path: Path) -> bool:
    """Whether no other system will begin. What is no race, but a directory of several jobs, ends with the latest."""
    try:
        return load(path).is_over
    except TraceInvalid:
        return True
