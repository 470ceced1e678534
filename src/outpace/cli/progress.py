"""What is seen of a run while it runs, on standard error: bars on a terminal, plain lines elsewhere.

Owns the way to the screen, also from rank 0 of real processes: a pipe, and a thread that reads it while the main thread
waits for the ranks.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

#: Told of the steps made, and of what goes with them; before the first step, of what is being done.
ShowStep = Callable[[int, str], None]

LINE_EVERY_S = 10.0  #: how often a log hears of a run that goes on


class Watcher(Protocol):
    """Shows systems that run one after the other."""

    def follow(self, index: int) -> AbstractContextManager[ShowStep]:
        """A context in which system `index` runs, with the function that is told of its steps."""


@contextmanager
def watcher(titles: Sequence[str], steps: int) -> Iterator[Watcher]:
    """Something that shows the progress of these systems, as well as standard error can."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(titles, steps, console)
        return
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", justify="right", markup=False),
        TimeElapsedColumn(),
        console=console,
        expand=True,
    ) as progress:
        yield Bars(titles, steps, progress)


class Bars:
    """One bar for each system; those to come are already there."""

    def __init__(self, titles: Sequence[str], steps: int, progress: Progress) -> None:
        self._progress = progress
        self._tasks = [progress.add_task(title, total=steps, start=False, note=" " * 12) for title in titles]

    @contextmanager
    def follow(self, index: int) -> Iterator[ShowStep]:
        """Moves the bar of this system. Its clock starts with the context, so it includes all that goes before."""
        task = self._tasks[index]
        self._progress.start_task(task)
        yield lambda step, note: self._progress.update(task, completed=step, note=note.rjust(12))
        self._progress.stop_task(task)


class Lines:
    """A line for each thing that begins, one when it ends, and one now and then between: for logs."""

    def __init__(self, titles: Sequence[str], steps: int, console: Console) -> None:
        self._titles, self._steps, self._console = titles, steps, console

    @contextmanager
    def follow(self, index: int) -> Iterator[ShowStep]:
        """Says what this system does, how far it is, and what it reached."""
        title, last, said = self._titles[index], "", time.monotonic()

        def show(step: int, note: str) -> None:
            nonlocal last, said
            last = note
            if step == 0:
                self._say(title, note)
            elif time.monotonic() > said + LINE_EVERY_S:
                said = time.monotonic()
                self._say(title, f"{step:,} of {self._steps:,} steps", note)

        yield show
        self._say(title, f"{self._steps:,} steps", last)

    def _say(self, title: str, *words: str) -> None:
        text = f"{title}: {', '.join(filter(None, words))}"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def from_rank_0(show: ShowStep) -> Iterator[Connection]:
    """A pipe for rank 0 to write (step, loss) into, shown by a thread until the context ends."""
    reader, writer = multiprocessing.get_context("forkserver").Pipe(duplex=False)
    thread = threading.Thread(target=_show_all, args=(reader, show), name="progress", daemon=True)
    thread.start()
    try:
        yield writer
    finally:
        writer.send(None)
        thread.join()
        writer.close()
        reader.close()


def _show_all(reader: Connection, show: ShowStep) -> None:
    show(0, "starting")
    while (message := reader.recv()) is not None:
        step, loss = message
        if step == 1:
            show(0, "training")
        show(step, f"loss {loss:.2f}")
