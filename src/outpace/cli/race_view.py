"""What is seen of a race while it runs, on standard error: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.text import Text

from outpace.cli.race_report import failures, table
from outpace.cli.watch_view import line, view
from outpace.observe.live import Follower
from outpace.race.result import Race
from outpace.race.run import Turn, Watch
from outpace.race.settings import Settings
from outpace.race.trial import steps_of

LINE_EVERY_S = 10.0  #: how often a log hears of a system that runs
LOOK_EVERY_S = 0.25


def watcher(settings: Settings) -> Watch:
    """What shows every turn, as well as standard error can."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    return (_Screens if console.is_terminal else _Lines)(settings, console).follow


class _Shown:
    """What both have in common: which system it is, and how long it trains."""

    def __init__(self, settings: Settings, console: Console) -> None:
        self._settings, self._console = settings, console
        steps = None if settings.script is not None else steps_of(settings)
        self._length = f", {steps:,} steps" if steps else f", {settings.seconds:g} s" if settings.seconds else ""

    def _title(self, race: Race, turn: Turn) -> str:
        again = f", {turn.repetition + 1} of {self._settings.repeat}" if self._settings.repeat > 1 else ""
        return f"{turn.entry.title} ({turn.index + 1} of {len(race.entries)} systems{again}{self._length})"


class _Screens(_Shown):
    """The table of who is done, and under it the ranks of who runs."""

    @contextmanager
    def follow(self, race: Race, turn: Turn) -> Iterator[None]:
        follower = Follower(turn.directory)
        title = Text(self._title(race, turn), style="bold")

        def render() -> RenderableType:
            done: list[RenderableType] = [table(race), *failures(race)] if any(e.attempts for e in race.entries) else []
            return Group(*done, title, view(follower.poll()))

        with Screen(
            console=self._console,
            get_renderable=render,
            refresh_per_second=1 / LOOK_EVERY_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield


class _Lines(_Shown):
    """A line when a system begins, one now and then, and one when it has ended: for logs."""

    @contextmanager
    def follow(self, race: Race, turn: Turn) -> Iterator[None]:
        title, done = self._title(race, turn), threading.Event()
        self._say(f"{title}: starting")
        thread = threading.Thread(target=self._tell, args=(title, turn.directory, done), daemon=True)
        thread.start()
        began = time.monotonic()
        try:
            yield
        finally:
            done.set()
            thread.join()
        self._say(f"{title}: done after {time.monotonic() - began:.0f} s")

    def _tell(self, title: str, directory: Path, done: threading.Event) -> None:
        follower = Follower(directory)
        while not done.wait(LINE_EVERY_S):
            self._say(f"{title}: {line(follower.poll())}")

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)
