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

from outpace.cli.race_report import table
from outpace.cli.watch_view import line, view
from outpace.observe.live import Follower
from outpace.race.result import Race
from outpace.race.run import Turn, Watch
from outpace.race.settings import Settings
from outpace.race.trial import steps_of

LINE_EVERY_S = 10.0  #: how often a log hears of a system that runs
LOOK_EVERY_S = 0.25


@contextmanager
def watcher(settings: Settings) -> Iterator[Watch]:
    """Something that shows every turn, as well as standard error can."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    yield (_Screens if console.is_terminal else _Lines)(settings, console).follow


class _Shown:
    """What both have in common: how far a system is."""

    def __init__(self, settings: Settings, console: Console) -> None:
        self._settings, self._console = settings, console
        self._steps = None if settings.script is not None else steps_of(settings)

    def _title(self, race: Race, turn: Turn) -> str:
        again = f", {turn.repetition + 1} of {self._settings.repeat}" if self._settings.repeat > 1 else ""
        return f"{turn.entry.title} ({turn.index + 1} of {len(race.entries)} systems{again})"

    def _length(self) -> str:
        if self._steps is not None:
            return f"of {self._steps:,} steps"
        return f"for {self._settings.seconds:g} s" if self._settings.seconds else "steps"


class _Screens(_Shown):
    """The table of who is done, and under it the ranks of who runs."""

    @contextmanager
    def follow(self, race: Race, turn: Turn) -> Iterator[None]:
        follower = Follower(turn.directory)
        title = Text(self._title(race, turn), style="bold")

        def render() -> RenderableType:
            parts: list[RenderableType] = [table(race)] if any(e.attempts for e in race.entries) else []
            return Group(*parts, title, view(follower.poll(time.monotonic_ns())))

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
            self._say(f"{title}: {line(follower.poll(time.monotonic_ns()))}")

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)
