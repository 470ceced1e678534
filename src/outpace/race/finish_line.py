"""When a rank of a race has trained enough. Owns the agreement of ranks that must make the same number of steps."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

_NOT_AGREED = 2**62  #: no last step was agreed on yet


class FinishLine:
    """After a number of steps, or of seconds from a rank's first step. Made by the parent, shared by all ranks.

    Ranks that are in step would wait for ever for one that stops a step before them. When the time of one of them is
    up, it looks how far the furthest is, and all go on to there: each announces a step before it takes it.
    """

    def __init__(self, ranks: int, steps: int | None, seconds: float | None) -> None:
        context: Any = multiprocessing.get_context("forkserver")
        self._steps, self._seconds = steps, seconds
        self._lock = context.Lock()
        self._begun = context.RawArray("q", ranks)  # steps that each rank has taken or is in
        self._last = context.RawValue("q", _NOT_AGREED)
        self._started: float | None = None  # when this rank's first step began

    def progress(self, done: float) -> float:
        """Share of a rank's training that is done after so many steps."""
        if self._steps is not None:
            return done / self._steps
        return 0.0 if self._started is None else self._share_of_time(self._started)

    def steps(self, rank: int, is_strict: bool) -> Iterator[int]:
        """The numbers of this rank's steps, from 0. The clock starts with the first."""
        self._started = time.monotonic()
        step = 0
        while not self._is_over(rank, step, is_strict):
            yield step
            step += 1

    def _is_over(self, rank: int, step: int, is_strict: bool) -> bool:
        if self._steps is not None:
            return step >= self._steps
        is_late = self._started is not None and self._share_of_time(self._started) >= 1
        if not is_strict:
            return is_late
        with self._lock:
            if is_late and self._last.value == _NOT_AGREED:
                self._last.value = max(self._begun)
            if step < self._last.value:
                self._begun[rank] = step + 1
            return step >= int(self._last.value)

    def _share_of_time(self, started: float) -> float:
        assert self._seconds is not None, "a race has a length"
        return (time.monotonic() - started) / self._seconds
