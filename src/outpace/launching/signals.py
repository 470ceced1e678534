"""Signals of a launcher: deferred, noted, and what they say in words. Handlers only take note."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

ASKED_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def defer_sigint() -> Iterator[None]:
    """Handles Ctrl-C at the end of this context. Processes started inside inherit the blocked signal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cause(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"signal {signal.Signals(-exitcode).name}"
    return f"exit code {exitcode}"


class Signals:
    """While this context lasts, signals wake up `wait`. In the main thread only."""

    def __init__(self) -> None:
        self.ends: list[int] = []  #: those that ask for an end, as they came
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for number in ASKED_TO_END:
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGTERM:  # as under nohup
                self._before[number] = signal.signal(number, self._note)
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._reading.close()
        self._writing.close()

    def wait(self, seconds: float | None) -> None:
        """Until a signal comes, a child's end among them, or so many seconds have passed."""
        if select.select([self._reading], [], [], seconds)[0]:
            self._reading.recv(4096)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.ends.append(number)
