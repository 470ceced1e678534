"""Simulated time: an event queue, and coroutines that sleep on it or wait in a list.

Owns the order of everything: by time, then by the order of planning. Nothing here knows of ranks or rounds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any

Waiters = list["Task"]
Action = Callable[[], object]
#: What a suspended coroutine asks for: nanoseconds to sleep, or a list to be put into until somebody wakes it.
Request = int | Waiters


@coroutine
def sleep(nanoseconds: int) -> Generator[Request, None, None]:
    yield nanoseconds


@coroutine
def wait_in(waiters: Waiters) -> Generator[Request, None, None]:
    """Suspends until the owner of the list wakes its tasks."""
    yield waiters


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0
        self._queue: list[tuple[int, int, Action]] = []
        self._count = 0

    def at(self, time_ns: int, action: Action) -> None:
        """Calls `action` at that time, after whatever was planned for it before."""
        self._count += 1
        heapq.heappush(self._queue, (time_ns, self._count, action))

    def after(self, nanoseconds: int, action: Action) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now_ns + nanoseconds, self._count, action))

    def run(self, until_ns: int | None = None) -> None:
        """Lets time pass until nothing is planned any more, or until that time. Raises what a task raises."""
        queue, pop = self._queue, heapq.heappop
        while queue and (until_ns is None or queue[0][0] <= until_ns):
            self.now_ns, _, action = pop(queue)
            action()
        if until_ns is not None:
            self.now_ns = max(self.now_ns, until_ns)

    def wake(self, waiters: Waiters, nanoseconds: int = 0) -> None:
        """Resumes all tasks of the list after that many nanoseconds, and empties it."""
        tasks = waiters[:]
        waiters.clear()
        for task in tasks:
            self.after(nanoseconds, task.resume)


class Task:
    """A coroutine on the clock. It can be stopped, continued and killed from outside, like a process."""

    def __init__(self, clock: Clock, body: Coroutine[Any, Any, None]) -> None:
        self.is_over = False  #: it came to its end, raised or was killed
        self.is_stopped = False
        self._clock, self._body = clock, body
        self._is_due = False  # it would have gone on while it was stopped

    def start(self) -> Task:
        self._clock.after(0, self.resume)
        return self

    def resume(self) -> None:
        if self.is_over:
            return
        if self.is_stopped:
            self._is_due = True
            return
        try:
            request = self._advance()
        except StopIteration:
            self.is_over = True
        except BaseException:
            self.is_over = True
            raise
        else:
            if isinstance(request, int):
                self._clock.after(request, self.resume)
            else:
                request.append(self)

    def stop(self) -> None:
        self.is_stopped = True

    def go_on(self) -> None:
        self.is_stopped = False
        if self._is_due:
            self._is_due = False
            self._clock.after(0, self.resume)

    def kill(self) -> None:
        """Ends it where it is suspended."""
        self.is_over = True
        self._body.close()

    def _advance(self) -> Request:
        return self._body.send(None)  # type: ignore[no-any-return]
