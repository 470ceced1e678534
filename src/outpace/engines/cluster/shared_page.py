"""What the ranks of a host share with their agent: a page of the arena, and the inbox.

The page has a bell, a clock, the agent's final error and how far it is, so that another one can go on when it was
killed. That is written into one of two places in turn, with its turn and a checksum: neither a killed agent nor a rank
that looks at the wrong moment can take half of it for the whole.

The inbox has what ranks and agent want to have in the log of all hosts. It is appended to like the log itself, by
single writes, so that the kernel orders it. How much of it is in the log of all hosts is known from that log alone; a
new agent goes on from there. What is in this host's log is given back.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any, NamedTuple
from zlib import crc32

from outpace.engines.arena import kernel
from outpace.engines.arena.kernel import Arena, Bell
from outpace.engines.arena.layout import ArenaLayout
from outpace.engines.arena.log import RECORD_BYTES, AppendedFile, LogFile, append, encode
from outpace.errors import OutpaceError, StoreLost
from outpace.protocol.events import Event
from outpace.protocol.hosts import Hosts

_PROGRESS = struct.Struct("<QQQ32s")  # the turn, then the fields
_CHECKED = struct.Struct(f"<{_PROGRESS.size}sI")
_OF_ZEROS = crc32(bytes(_PROGRESS.size))
_BELL, _CLOCK, _STATUS, _KEY, _LIFE, _PLACES, _WORDS = 0, 8, 16, 32, 64, 128, 384
_PLACE_BYTES = 128
_MOST_WORDS = 2000
RUNNING, STORE_LOST, FAILED, LEFT = range(4)


class Progress(NamedTuple):
    """How far an agent has taken over the log of all hosts."""

    entries: int = 0  #: of the log of all hosts, in this host's log
    position: int = 0  #: bytes of this host's log that they are
    chain: bytes = bytes(32)  #: seal of the last of them


class SharedPage:
    def __init__(self, memory: Arena) -> None:
        offset = memory.layout.agent
        self._page = memory.raw[offset : offset + 4096]
        self.bell = ctypes.c_uint32.from_buffer(self._page, _BELL)
        self._clock = self._page[_CLOCK : _CLOCK + 8].cast("q")
        self._status = self._page[_STATUS : _STATUS + 8].cast("Q")
        self.key = bytes(self._page[_KEY : _KEY + 32])  #: with which this job's records are sealed
        #: sequence number of this start of the host, within this start of the job
        self.life = int.from_bytes(self._page[_LIFE : _LIFE + 8], "little")

    @property
    def clock_ns(self) -> int:
        """What all hosts' common clock shows beyond this host's own."""
        return int(self._clock[0])

    @clock_ns.setter
    def clock_ns(self, offset: int) -> None:
        self._clock[0] = offset

    @property
    def progress(self) -> Progress:
        """Of the last agent. Anybody may look at any time."""
        return self._last_turn()[1]

    @progress.setter
    def progress(self, progress: Progress) -> None:
        turn = self._last_turn()[0] + 1
        fields = _PROGRESS.pack(turn, *progress)
        _CHECKED.pack_into(self._page, _PLACES + _PLACE_BYTES * (turn % 2), fields, _check(fields))

    def _last_turn(self) -> tuple[int, Progress]:
        """One place is whole at any time; who finds neither so was too slow in looking at both, and looks again."""
        whole: list[tuple[Any, ...]] = []
        while not whole:
            places = [_CHECKED.unpack_from(self._page, _PLACES + _PLACE_BYTES * place) for place in range(2)]
            whole = [_PROGRESS.unpack(fields) for fields, check in places if _check(fields) == check]
        turn, *progress = max(whole)
        return turn, Progress(*progress)

    @property
    def status(self) -> int:
        return int(self._status[0])

    @status.setter
    def status(self, status: int) -> None:
        self._status[0] = status

    def give_up(self, status: int, why: str) -> None:
        """The agent's last words: no rank of this host can go on."""
        words = why.encode()[:_MOST_WORDS]
        self._page[_WORDS : _WORDS + 4 + len(words)] = len(words).to_bytes(4, "little") + words
        kernel.before_showing()
        self._status[0] = status

    def check(self, where: str) -> None:
        status = self.status
        if status in (RUNNING, LEFT):
            return
        length = int.from_bytes(self._page[_WORDS : _WORDS + 4], "little")
        why = bytes(self._page[_WORDS + 4 : _WORDS + 4 + length]).decode(errors="replace")
        raise (StoreLost if status == STORE_LOST else OutpaceError)(f"{where} {why}")


def _check(fields: bytes) -> int:
    """A checksum by which a place that was never written is whole, too."""
    return crc32(fields) ^ _OF_ZEROS


def prepare_page(arena_fd: int, layout: ArenaLayout, key: bytes, life: int) -> None:
    """Leaves the job's key and the host's start number in a new arena, before anybody else finds it."""
    os.pwrite(arena_fd, key, layout.agent + _KEY)
    os.pwrite(arena_fd, life.to_bytes(8, "little"), layout.agent + _LIFE)


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
