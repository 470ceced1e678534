"""What the ranks of a host, and its agent, want to have in the log of all hosts. Owns the file between them.

Appended like the log itself, by single writes, so that the kernel orders it. How much of it is in the log of all hosts
is known from that log alone; a new agent goes on from there.
"""

from __future__ import annotations

import os

from outpace.engines.cluster.desk import Desk
from outpace.engines.local.bell import Bell
from outpace.engines.local.log import RECORD_BYTES, Log, append, encode, origins
from outpace.protocol.events import Event

NOBODY = 0  #: origin of what an agent appends
_NUMBERS = 1 << 16


class Inbox:
    """Appending to it and reading it."""

    def __init__(self, fd: int, desk: Desk) -> None:
        self._fd = fd
        self._desk = desk
        self._bell = Bell(desk.bell)

    def put(self, event: Event, time_ns: int, origin: tuple[int, int] = (NOBODY, 0)) -> None:
        """Appends, and wakes the agent."""
        append(self._fd, encode(event, time_ns, origin))
        self._bell.ring()

    def read(self, position: int, records: int) -> bytes:
        """What was appended from there on, at most so many records."""
        return os.pread(self._fd, records * RECORD_BYTES, position)


class SentLog(Log):
    """A rank's view of its host's log. What it appends goes through the inbox, and is there once it came back."""

    def __init__(self, fd: int, inbox: Inbox, desk: Desk, rank: int) -> None:
        super().__init__(fd)
        self._inbox, self._desk = inbox, desk
        self._origin = rank + 1
        self._sent = int.from_bytes(os.urandom(2), "little")  # not what this rank's last life has sent
        self._back = self._sent

    @property
    def is_back(self) -> bool:
        """Whether the last record this rank appended is in the log."""
        return self._back == self._sent

    def now_ns(self) -> int:
        """The clock of all hosts."""
        return super().now_ns() + self._desk.clock_ns

    def append(self, event: Event) -> None:
        """Gives it to the agent."""
        self._sent = (self._sent + 1) % _NUMBERS
        self._inbox.put(event, self.now_ns(), (self._origin, self._sent))

    def _taken_in(self, records: bytes) -> None:
        for origin, number in origins(records):
            if origin == self._origin:
                self._back = number
