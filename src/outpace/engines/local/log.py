"""The log of one host: 64-byte records, each appended by one `write`, so that the kernel orders them.

A record is there or it is not; a process stopped or killed while appending can hold nothing. Owns the encoding and
the reading position; decides nothing.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from zlib import crc32

from outpace.errors import ArenaInvalid
from outpace.protocol.events import Event

RECORD_BYTES = 64
_BODY = struct.Struct("<BxHIQQIIddQ")  # kind, rank, incarnation, step, round, place, attempt, samples, value, time
_CHECK = struct.Struct("<I")
_READ_BYTES = RECORD_BYTES * 512
_PUNCH_AT_BYTES = 1 << 20  #: room is given back in pieces of at least this size
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


class LogCut(Exception):
    """The records wanted next were given back; whoever needs them adopts a snapshot."""


def encode(event: Event) -> bytes:
    """An event as one record."""
    body = _BODY.pack(
        event.kind,
        event.rank,
        event.incarnation,
        event.step,
        event.round,
        event.place,
        event.attempt,
        event.samples,
        event.value,
        event.time_ns,
    )
    return body + _CHECK.pack(crc32(body)) + b"\0" * (RECORD_BYTES - len(body) - 4)


def decode(record: bytes | memoryview) -> Event:
    """A record as an event. Raises for one that was damaged."""
    kind, rank, incarnation, step, round_, place, attempt, samples, value, time_ns = _BODY.unpack_from(record)
    if crc32(record[: _BODY.size]) != _CHECK.unpack_from(record, _BODY.size)[0]:
        raise ArenaInvalid(
            "a record of the shared log is damaged: something else wrote into this job's memory. "
            "Nothing was applied from it; restart from the last checkpoint"
        )
    return Event(kind, rank, incarnation, step, round_, place, attempt, samples, value, time_ns)


class Log:
    """One rank's view of the log: appends at the end, reads from its own position."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._cut = 0
        self.position = 0  #: bytes read so far

    def append(self, event: Event) -> None:
        """Adds an event. Takes part of a microsecond and cannot be torn."""
        os.write(self._fd, encode(event))

    def has_news(self) -> bool:
        """Whether `read_new` would find anything."""
        return bool(os.pread(self._fd, 1, self.position))

    def read_new(self) -> list[Event]:
        """The events since the last call."""
        events: list[Event] = []
        while data := os.pread(self._fd, _READ_BYTES, self.position):
            view = memoryview(data)
            for start in range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
                if not data[start]:
                    raise LogCut  # a hole reads as zeros, and no event has kind 0
                events.append(decode(view[start : start + RECORD_BYTES]))
            self.position += len(data)
            if len(data) < _READ_BYTES:
                break
        return events

    def cut(self, position: int) -> None:
        """Gives back the memory of records before `position`. Positions stay as they are."""
        position -= position % 4096
        if position - self._cut < _PUNCH_AT_BYTES or not sys.platform.startswith("linux"):
            return
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate(self._fd, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(position))
        self._cut = position
