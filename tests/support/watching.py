"""Watching ranks from outside, and hitting them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import outpace
from tests.faults.soak.diary import Life

PATIENCE_S = 150.0  # no measure of anything: a hang becomes an error


class Watcher(threading.Thread):
    """Runs `then` beside a job. Whatever becomes of it, the ranks are told to end."""

    def __init__(self, directory: Path, ranks: int, then: Callable[[Watcher], None]) -> None:
        super().__init__()
        self.lives = [Life(directory, rank, 1) for rank in range(ranks)]
        self.trouble: BaseException | None = None
        self._directory, self._then = directory, then

    def run(self) -> None:
        try:
            self._then(self)
        except BaseException as error:
            self.trouble = error
        finally:
            (self._directory / "stop").touch()

    def until_steps(self, ranks: list[int], more: int) -> None:
        """Each of these ranks has made so many more steps than now."""
        self._look()
        wanted = {rank: len(self.lives[rank].steps) + more for rank in ranks}
        began = time.monotonic()
        while any(len(self.lives[rank].steps) < steps for rank, steps in wanted.items()):
            steps = [len(life.steps) for life in self.lives]
            assert time.monotonic() - began < PATIENCE_S, f"ranks {ranks} did not make {more} more steps: {steps}"
            time.sleep(0.002)
            self._look()

    def _look(self) -> None:
        for life in self.lives:
            life.look()


def watched(fn: Callable, ranks: int, directory: Path, args: tuple, then: Callable[[Watcher], None]) -> tuple:
    """What each rank returned, and the watcher."""
    watcher = Watcher(directory, ranks, then)
    watcher.start()
    try:
        told = outpace.spawn(fn, ranks, (str(directory), *args))
    finally:
        (directory / "stop").touch()
        watcher.join()
    if watcher.trouble is not None:
        raise watcher.trouble
    watcher._look()
    return told, watcher
