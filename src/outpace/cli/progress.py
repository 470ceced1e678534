"""What is seen of a run while it runs, on standard error: bars on a terminal, plain lines elsewhere.

Owns the way from rank 0 to the screen: a pipe, and a thread that reads it while the main thread waits for the ranks.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ShowStep = Callable[[int, float], None]


class Watcher(Protocol):
    """Shows systems that run one after the other."""

    def follow(self, index: int) -> AbstractContextManager[Connection]:
        """A context in which system `index` runs, with the pipe to give to it."""


@contextmanager
def watcher(titles: list[str], steps: int) -> Iterator[Watcher]:
    """Something that shows the progress of these systems, as well as standard error can."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(titles, steps, console)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", justify="right"),
        TimeElapsedColumn(),
        console=console,
        expand=True,
    ) as progress:
        yield Bars(titles, steps, progress)


class Bars:
    """One bar for each system; those to come are already there."""

    def __init__(self, titles: list[str], steps: int, progress: Progress) -> None:
        self._progress = progress
        self._tasks = [progress.add_task(title, total=steps, start=False, note=" " * 12) for title in titles]

    @contextmanager
    def follow(self, index: int) -> Iterator[Connection]:
        """Moves the bar of this system. Its clock starts with its ranks, so it includes their start."""
        task = self._tasks[index]
        self._progress.start_task(task)
        self._progress.update(task, note="starting".rjust(12))

        def show(step: int, loss: float) -> None:
            self._progress.update(task, completed=step, note=f"loss {loss:7.2f}")

        with _reading(show) as pipe:
            yield pipe
        self._progress.stop_task(task)


class Lines:
    """A line when a system begins and one when it ends: for logs."""

    def __init__(self, titles: list[str], steps: int, console: Console) -> None:
        self._titles, self._steps, self._console = titles, steps, console

    @contextmanager
    def follow(self, index: int) -> Iterator[Connection]:
        """Says that this system begins, that its ranks are training, and what it reached."""
        title = self._titles[index]
        self._say(f"{title}: starting")
        last = [0.0]

        def show(step: int, loss: float) -> None:
            last[0] = loss
            if step == 1:
                self._say(f"{title}: training")

        with _reading(show) as pipe:
            yield pipe
        self._say(f"{title}: {self._steps} steps, mini-batch loss {last[0]:.2f}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _reading(show: ShowStep) -> Iterator[Connection]:
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
    while (message := reader.recv()) is not None:
        show(*message)
