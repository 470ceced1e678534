"""The page that the ranks of a host share with their agent. Owns its words: a bell, a clock, the agent's last words.

How far the agent is lies here, too, so that another one can go on when it was killed. That is written into one of two
places in turn and shown by a single store, so that a killed agent cannot leave half of it.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import NamedTuple

from outpace.engines.local import order
from outpace.engines.local.arena import Memory
from outpace.engines.local.layout import ArenaLayout
from outpace.errors import OutpaceError, StoreLost

_PROGRESS = struct.Struct("<QQQ32s")
_BELL, _CLOCK, _NUMBERS, _KEY, _PLACES, _LIFE, _WORDS = 0, 8, 16, 32, 64, 192, 256
_MOST_WORDS = 2000
RUNNING, STORE_LOST, FAILED, LEFT = range(4)


class Progress(NamedTuple):
    """How far an agent has taken over the log of all hosts."""

    entries: int = 0  #: of the log of all hosts, in this host's log
    position: int = 0  #: bytes of this host's log that they are
    inbox: int = 0  #: bytes of this host's inbox that are in them
    chain: bytes = bytes(32)  #: seal of the last of them


class Desk:
    """One host's page."""

    def __init__(self, memory: Memory) -> None:
        offset = memory.layout.agent
        self._page = memory.raw[offset : offset + 4096]
        self.bell = ctypes.c_uint32.from_buffer(self._page, _BELL)
        self._clock = self._page[_CLOCK : _CLOCK + 8].cast("q")
        self._numbers = self._page[_NUMBERS : _NUMBERS + 16].cast("Q")  # status, whose turn

    @property
    def key(self) -> bytes:
        """With which this job's records are sealed."""
        return bytes(self._page[_KEY : _KEY + 32])

    @property
    def life(self) -> int:
        """The how-manieth start of this host it is, in this start of the job."""
        return int.from_bytes(self._page[_LIFE : _LIFE + 8], "little")

    @property
    def clock_ns(self) -> int:
        """What all hosts' common clock shows beyond this host's own."""
        return int(self._clock[0])

    @clock_ns.setter
    def clock_ns(self, offset: int) -> None:
        self._clock[0] = offset

    @property
    def progress(self) -> Progress:
        """Of the last agent."""
        return Progress(*_PROGRESS.unpack_from(self._page, _PLACES + 64 * (self._numbers[1] % 2)))

    @progress.setter
    def progress(self, progress: Progress) -> None:
        turn = self._numbers[1] + 1
        _PROGRESS.pack_into(self._page, _PLACES + 64 * (turn % 2), *progress)
        self._numbers[1] = turn

    @property
    def status(self) -> int:
        """Of the last agent."""
        return int(self._numbers[0])

    def begin(self) -> None:
        """An agent is about to be started, whatever became of the last one."""
        self._numbers[0] = RUNNING

    def leave(self) -> None:
        """The agent ends because nobody needs it."""
        self._numbers[0] = LEFT

    def give_up(self, status: int, why: str) -> None:
        """The agent's last words: no rank of this host can go on."""
        words = why.encode()[:_MOST_WORDS]
        self._page[_WORDS : _WORDS + 4 + len(words)] = len(words).to_bytes(4, "little") + words
        order.before_showing()
        self._numbers[0] = status

    def check(self, where: str) -> None:
        """Raises if the agent has given up."""
        status = self.status
        if status in (RUNNING, LEFT):
            return
        length = int.from_bytes(self._page[_WORDS : _WORDS + 4], "little")
        why = bytes(self._page[_WORDS + 4 : _WORDS + 4 + length]).decode(errors="replace")
        raise (StoreLost if status == STORE_LOST else OutpaceError)(f"{where} {why}")


def prepare_desk(arena_fd: int, layout: ArenaLayout, key: bytes, life: int) -> None:
    """Leaves the job's key in a new arena, and the how-manieth of its host it is, before anybody else finds it."""
    os.pwrite(arena_fd, key, layout.agent + _KEY)
    os.pwrite(arena_fd, life.to_bytes(8, "little"), layout.agent + _LIFE)
