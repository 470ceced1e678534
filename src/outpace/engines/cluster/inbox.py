"""What the ranks of a host, and its agent, want to have in the log of all hosts. Owns the file between them.

Appended like the log itself, by single writes, so that the kernel orders it. How much of it is in the log of all hosts
is known from that log alone; a new agent goes on from there. What is in this host's log is given back.
"""

from __future__ import annotations

import os

from outpace.engines.arena.kernel import Bell
from outpace.engines.arena.log import RECORD_BYTES, AppendedFile, LogFile, append, encode
from outpace.engines.cluster.shared_page import SharedPage
from outpace.protocol.events import Event
from outpace.protocol.hosts import Hosts


class Inbox(AppendedFile):
    def __init__(self, fd: int, page: SharedPage) -> None:
        super().__init__(fd)
        self._bell = Bell(page.bell)

    def put(self, event: Event, time_ns: int) -> int:
        """Appends, and wakes the agent. Returns by which place the record lies: others may have appended after it."""
        append(self._fd, encode(event, time_ns))
        end = os.fstat(self._fd).st_size
        self._bell.ring()
        return end

    def read(self, position: int, records: int) -> bytes:
        return os.pread(self._fd, records * RECORD_BYTES, position)


class SentLog(LogFile):
    """A rank's view of its host's log. What it appends goes through the inbox, and is there once it came back."""

    def __init__(self, fd: int, inbox: Inbox, page: SharedPage) -> None:
        super().__init__(fd)
        self._inbox, self._page = inbox, page
        self._sent = 0  # up to where in the inbox all that this rank has appended lies

    def is_back(self, hosts: Hosts, host: int) -> bool:
        """Whether all that this rank appended is in what those hosts were read from, or taken from a snapshot of."""
        return (hosts.committed_of(host, self._page.life) or 0) >= self._sent

    def now_ns(self) -> int:
        """The clock of all hosts."""
        return super().now_ns() + self._page.clock_ns

    def append(self, event: Event) -> None:
        self._sent = self._inbox.put(event, event.time_ns)
