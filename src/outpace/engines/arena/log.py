"""The log of one host: 64-byte records, each appended by one `write`, so that the kernel orders them.

A record is there or it is not; a process stopped or killed while appending can hold nothing. Owns the encoding;
decides nothing.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import time
from zlib import crc32

from outpace.engines.arena import order
from outpace.errors import ArenaInvalid
from outpace.protocol import events as ev
from outpace.protocol.events import Event

RECORD_BYTES = 64
# A record: its kind, the fields of that kind, the time (8 bytes) and the checksum of all that (4).
_FIELDS: tuple[tuple[type[Event], str], ...] = (  # a kind's number, its place here counted from 1, never changes
    (ev.Join, "HI"),
    (ev.Arrive, "HIQQIddI?"),
    (ev.Seal, "Q"),
    (ev.Attempt, "QII"),
    (ev.Refuse, "HIQQ"),
    (ev.Done, "HQIId?"),
    (ev.Sync, "HIQQQ"),
    (ev.Finish, "HI?"),
    (ev.Dead, "HI"),
    (ev.Claim, "HII"),
    (ev.Snapshot, "HIIQQ?"),
    (ev.Publish, "HIQQQ"),
    (ev.Read, "HIQ"),
    (ev.Swap, "HIHQQ"),
    (ev.Tell, "HIQId"),
    (ev.Withdraw, "HIQ"),
    (ev.Agent, "HI"),
    (ev.Gone, "HI"),
)
_TIME_AT, _CHECKED_BYTES = 48, 56
_END = struct.Struct("<I4x")


def _record(fields: str) -> struct.Struct:
    unused = _TIME_AT - struct.calcsize(f"<B{fields}")
    return struct.Struct(f"<B{fields}{unused}xQ")


_ENCODING = {kind: (number, _record(fields)) for number, (kind, fields) in enumerate(_FIELDS, 1)}
_DECODING = {number: (kind._make, record) for kind, (number, record) in _ENCODING.items()}
READ_RECORDS = 32  #: a few rounds at once; a larger buffer costs more than a second read
_READ_BYTES = RECORD_BYTES * READ_RECORDS
CUT_AT_BYTES = 1 << 20  #: room is given back in pieces of at least this size
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


class LogCut(Exception):
    """The records wanted next were given back; whoever needs them adopts a snapshot."""


def encode(event: Event, time_ns: int = 0) -> bytes:
    """An event as one record, with the time it is appended at."""
    number, record = _ENCODING[type(event)]
    body = record.pack(number, *event[:-1], time_ns)
    return body + _END.pack(crc32(body))


def decode(records: bytes) -> list[Event]:
    """Whole records as events. Raises for one that was damaged, or given back."""
    events: list[Event] = []
    for start in range(0, len(records), RECORD_BYTES):
        number, end = records[start], start + _CHECKED_BYTES
        if not number:
            raise LogCut  # a hole reads as zeros, and no event has kind 0
        if number not in _DECODING or _END.unpack_from(records, end)[0] != crc32(records[start:end]):
            raise ArenaInvalid(
                "a record of the shared log is damaged: something else wrote into this job's memory. "
                "Nothing was applied from it; restart from the last checkpoint"
            )
        make, record = _DECODING[number]
        events.append(make(record.unpack_from(records, start)[1:]))
    return events


def append(fd: int, record: bytes) -> None:
    """Shows one record to all who read that file. They see it after everything that this process did to shared memory
    before, and before anything that it does there afterwards."""
    order.before_showing()
    os.write(fd, record)
    order.before_showing()


class Trimming:
    """Gives back the memory of a file's beginning, which then reads as zeros."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._cut = 0

    def cut(self, position: int) -> None:
        """What lies before `position` is not needed any more."""
        position -= position % 4096
        if position - self._cut < CUT_AT_BYTES or not sys.platform.startswith("linux"):
            return
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate(self._fd, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(position))
        self._cut = position


class Log:
    """One rank's view of the log: appends at the end, reads from any position, in bytes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._trimming = Trimming(fd)

    def now_ns(self) -> int:
        """The clock that events are timed by."""
        return time.monotonic_ns()

    def append(self, event: Event) -> None:
        """Adds an event as it is, with its time. Takes about a microsecond and cannot be torn."""
        append(self._fd, encode(event, event.time_ns))

    def close(self) -> None:
        """Its file is about to be closed, and the number may be another file's then."""
        self._fd = -1

    def has_news(self, position: int) -> bool:
        """Whether `read` would find anything there."""
        return bool(os.pread(self._fd, 1, position))

    def read(self, position: int) -> list[Event]:
        """The next events from there on, at most `READ_RECORDS`."""
        records = os.pread(self._fd, _READ_BYTES, position)
        if not records:
            return []
        return decode(records)

    def cut(self, position: int) -> None:
        """Gives back the memory of records before `position`. Positions stay as they are."""
        self._trimming.cut(position)
