"""The log of one host, as one of its ranks sees it: records in a file, and the ledger that is folded from them.

A record is 64 bytes, appended by one `write`, so that the kernel orders them: a record is there or it is not, and a
process stopped or killed while appending holds nothing up. `ArenaLog` keeps a ledger up to date and waits. It owns the
appends, the bell and the liveness probes, and decides nothing: what an event means is up to the ledger.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
import time
from dataclasses import dataclass
from threading import get_ident
from zlib import crc32

from outpace.engines.arena import kernel
from outpace.engines.arena.kernel import SLICE_S, Bell, Faults, Life
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.engines.log import Wait
from outpace.errors import ArenaInvalid, BelowQuorum, OutpaceError, TimedOut
from outpace.job.machine import cores
from outpace.protocol import events as ev
from outpace.protocol.events import Dead, Event, Outcome, OutcomeKind
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules

RECORD_BYTES = 64
# A record: its kind, the fields of that kind, the time (8 bytes) and the checksum of all that (4).
_FIELDS: tuple[tuple[type[Event], str], ...] = (  # a kind's number, its place here counted from 1, never changes
    (ev.Join, "HI"),
    (ev.Arrive, "HIIQBddH?Q"),
    (ev.Seal, "Q"),
    (ev.Attempt, "QII"),
    (ev.Refuse, "HIQQ"),
    (ev.Done, "HQIId?"),
    (ev.Sync, "HIQQQQQ"),
    (ev.Finish, "HI?"),
    (ev.Dead, "HI"),
    (ev.Claim, "HII"),
    (ev.Snapshot, "HIIQQ??"),
    (ev.Publish, "HIQQQQ"),
    (ev.Read, "HIQ"),
    (ev.Swap, "HIHQQ"),
    (ev.Tell, "HIQId"),
    (ev.Withdraw, "HIQ"),
    (ev.Agent, "HI"),
    (ev.Gone, "HI"),
    (ev.Draw, "HIHIQIIqd"),
    (ev.Skip, "HIQIQQ"),
    (ev.Away, "HIQ?"),
    (ev.Back, "HI"),
    (ev.Commit, "HQQ"),
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
CUT_AT_BYTES = 1 << 20  #: room is freed in pieces of at least this size
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
PROBE_S = 0.1
SPIN_S = 0.0002  #: if each rank has a core, a wait starts by spinning for this long: waking up takes as long
ASLEEP_S = 1.0  #: a rank that did not look for this long was stopped itself; several times the longest rest
LONG_WAIT_S, LONG_SLICE_S = 0.5, 0.05  #: after a wait this long, a lost ring may cost this much: a tenth of it
SEAL_TURN_S, SEAL_TURNS = 0.002, 4  #: if the first rank to arrive does not seal, the next one does, and so on
_PASSED_OVER = Outcome(
    OutcomeKind.UNKNOWN, "unknown: this rank was away, and a snapshot replaced the log that showed what came of it"
)


class LogCut(Exception):
    """The records wanted next were freed; a rank that needs them adopts a snapshot."""


def encode(event: Event, time_ns: int = 0) -> bytes:
    number, record = _ENCODING[type(event)]
    body = record.pack(number, *event[:-1], time_ns)
    return body + _END.pack(crc32(body))


def decode(records: bytes) -> list[Event]:
    """Whole records as events. Raises if one is damaged or was freed."""
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
    """Appends one record for all readers of the file. They see it after everything that this process did to shared
    memory before, and before anything that it does there afterwards."""
    kernel.before_showing()
    os.write(fd, record)
    kernel.before_showing()


class AppendedFile:
    """A file that grows at its end, and whose beginning can be freed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._cut = 0

    def cut(self, position: int) -> None:
        """Frees the memory of what lies before, which then reads as zeros. Positions do not change."""
        position -= position % 4096
        if position - self._cut < CUT_AT_BYTES or not sys.platform.startswith("linux"):
            return
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate(self._fd, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(position))
        self._cut = position


class LogFile(AppendedFile):
    """The file: appends at the end, reads from any position, in bytes."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def append(self, event: Event) -> None:
        """Appends an event as it is, with its time. Takes about a microsecond and cannot be torn."""
        append(self._fd, encode(event, event.time_ns))

    def close(self) -> None:
        """To be called before the file is closed: its descriptor may then become another file's."""
        self._fd = -1

    def has_news(self, position: int) -> bool:
        return bool(os.pread(self._fd, 1, position))

    def read(self, position: int) -> list[Event]:
        """The next events from that position on, at most `READ_RECORDS`."""
        records = os.pread(self._fd, _READ_BYTES, position)
        return decode(records) if records else []


@dataclass(slots=True)
class Fold:
    """A ledger, and how much of the log is in it. Both change together, or are discarded together.

    A signal handler may raise between any two instructions. So a thread marks the fold before it changes it: if the
    same thread later finds the mark still set, an exception tore the fold, and it is made anew. There is no `except`
    that an exception could come before.
    """

    ledger: Ledger
    position: int = 0  #: bytes of the log
    by: int = 0  #: the thread that is folding into it, 0 while it is whole


class ArenaLog:
    def __init__(
        self,
        rank: int,
        rules: Rules,
        file: LogFile,
        snapshots: SnapshotStore,
        bell: Bell,
        life: Life,
        faults: Faults,
        timeout_s: float,
        host: int = 0,
    ) -> None:
        self.rank = rank
        self.incarnation = 0
        self._fold = Fold(Ledger(rules, host))
        self.waited_s = 0.0
        self.helpers = 0  #: how many waiters to wake for a sealed round
        self.file, self._snapshots, self._bell, self.life, self.faults = file, snapshots, bell, life, faults
        self._timeout_s = timeout_s
        self._spin_s = SPIN_S if rules.world <= cores() else 0.0  # else it would take a core from somebody who works
        self._appended: dict[int, tuple[Event, Outcome]] = {}  # by time, the events being appended here
        self._probed = 0.0
        self._shown = 0

    @property
    def ledger(self) -> Ledger:
        """The fold of all events up to `position`, never of half an event."""
        by = self._fold.by
        if by and by == get_ident():
            self.look()
        return self._fold.ledger

    @property
    def position(self) -> int:
        return self._fold.position

    def look(self) -> None:
        """Folds what is new in the log. The bell is read first, so that a ring after this look is not missed.

        Ends with a fold of its own even if a signal handler looked at the log in the middle of it.
        """
        self._shown = self._bell.value()
        fold = self._fold
        if fold.by:
            fold = Fold(Ledger(fold.ledger.rules, fold.ledger.host))
        fold.by = get_ident()
        while True:
            try:
                events = self.file.read(fold.position)
            except LogCut:
                fold = self._fold_of_snapshot()
                continue
            apply, appended = fold.ledger.apply, self._appended
            for event in events:
                outcome = apply(event)
                fold.position += RECORD_BYTES
                mine = appended.get(event.time_ns)
                if mine is not None and mine[0] == event and type(mine[0]) is type(event):  # two kinds may be equal
                    appended[event.time_ns] = (event, outcome)
            if len(events) < READ_RECORDS:
                break
        fold.by = 0
        self._fold = fold

    def foresee(self, event: Event) -> None:
        """Folds an event that this process, which alone writes the log, is about to append."""
        fold = self._fold
        fold.by = get_ident()
        fold.ledger.apply(event)
        fold.position += RECORD_BYTES
        fold.by = 0

    def _fold_of_snapshot(self) -> Fold:
        """For a rank whose place in the log was cut while it was away, or whose fold was torn after that."""
        before, began = self._fold.ledger, time.monotonic()
        while True:
            buffer = self._snapshots.hinted()
            plain = None if buffer is None else self._snapshots.read_plain(buffer)
            if plain is not None:
                return Fold(Ledger.from_state(before.rules, plain["ledger"], before.host), plain["position"])
            if time.monotonic() - began > self._timeout_s:
                raise TimedOut(
                    f"[rank {self.rank}] what this rank missed is no longer in the log, and no snapshot to go on from "
                    f"was written within {self._timeout_s:.0f} s. Check whether the other ranks of its host are "
                    "stopped, or raise timeout_s"
                )
            time.sleep(SLICE_S)  # it is being overwritten, and a newer one is about to be hinted at

    def append(self, event: Event) -> Outcome:
        """Appends in this rank's name, folds, and wakes the others if it may concern them.

        Returns the outcome of this very event. It is unknown only if a snapshot from after it was adopted.
        """
        ledger = self.ledger
        news, sealed, round_ = ledger.news, ledger.reducing, ledger.round
        self.faults.at("before-append", round_)
        event = event._replace(time_ns=self.file.now_ns())
        self._appended[event.time_ns] = (event, _PASSED_OVER)  # before it is in the log: a signal handler may fold it
        try:
            self.file.append(event)
            self.faults.at("after-append", round_)
            self._until_folded()
            _, outcome = self._appended[event.time_ns]
        finally:
            self._appended.pop(event.time_ns, None)
        ledger = self.ledger
        if ledger.news != news:
            self.faults.at("before-wake", round_)
            self._bell.ring()
        elif self.helpers and ledger.reducing is not None and ledger.reducing is not sealed:
            self.faults.at("before-wake", round_)
            self._bell.ring(self.helpers)
        return outcome

    def say(self, event: Event) -> None:
        self.append(event)

    def _until_folded(self) -> None:
        self.look()

    def close(self) -> None:
        """Stops reading. The ledger so far stays available."""
        with contextlib.suppress(OutpaceError):  # a damaged log: probably the reason for closing
            if self._fold.by:
                self.look()
        self.file.close()

    def now_s(self) -> float:
        return time.monotonic()

    def is_long_since(self, position: int) -> bool:
        return self.position - position >= CUT_AT_BYTES

    def cut(self, position: int, buffer: int) -> None:
        """Leaves a hint at the snapshot, and frees the memory of what lies before it."""
        self._snapshots.announce(buffer)
        self.file.cut(position)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        if self.ledger.below_quorum:
            where = f"[rank {self.rank} - round {self.ledger.round}]"
            raise BelowQuorum(f"{where} {self.ledger.why_below_quorum()}")

    def begin_wait(self, purpose: str, version: int | None = None, rank: int | None = None) -> Wait:
        now = time.monotonic()
        return Wait(purpose, now, now, version, rank, looked_s=now)

    def end_wait(self, wait: Wait) -> None:
        now = time.monotonic()
        self.waited_s += now - wait.counted_s
        wait.counted_s = now

    async def rest(self, wait: Wait, at_most_s: float | None = None) -> None:
        """Sleeps without CPU until there may be news, and reads it. Ends in time for anything due by the clock."""
        now = time.monotonic()
        if now - wait.looked_s > ASLEEP_S:  # this rank itself was stopped, not those it waits for
            wait.asleep_s += now - wait.looked_s
        wait.looked_s = now
        if now - self._probed > PROBE_S:
            self._probed = now
            if self.report_deaths():
                return
        if now - wait.began_s - wait.asleep_s > self._timeout_s:
            raise TimedOut(self._timed_out(wait.purpose))
        self._sleep(now - wait.began_s)
        self.look()

    def _sleep(self, waited_s: float) -> None:
        """Sleeps until there is news, or something to do by the clock. As little as possible runs between slices."""
        if waited_s < self._spin_s and self._bell.spin(self._shown, self._spin_s):
            return
        left = self._grace_left_s()
        if left is not None or self.ledger.reducing is not None:
            self._bell.wait(self._shown, SLICE_S if left is None else min(SLICE_S, max(1e-5, left)))
            return
        slice_s = SLICE_S if waited_s < LONG_WAIT_S else LONG_SLICE_S
        for _ in range(round(PROBE_S / slice_s)):
            self._bell.wait(self._shown, slice_s)
            if self._bell.value() != self._shown or self.file.has_news(self.position):
                return

    def is_seal_due(self) -> bool:
        left = self._grace_left_s()
        return left is not None and left <= 0

    def living(self) -> list[int]:
        return [m.rank for m in self.ledger.members.by_rank.values() if m.alive]

    def _grace_left_s(self) -> float | None:
        """How long this rank still waits before it seals the open round. The first to arrive seals first."""
        deadline = self.ledger.deadline_ns
        if deadline is None:
            return None
        turn = next((i for i, rank in enumerate(self.ledger.sealers()) if rank == self.rank), SEAL_TURNS)
        return (deadline - self.file.now_ns()) / 1e9 + min(turn, SEAL_TURNS) * SEAL_TURN_S

    def report_deaths(self) -> bool:
        """Reports deaths of this host's ranks, whose locks only this host can see."""
        here = self.ledger.hosts.of
        gone = [
            m
            for m in self.ledger.members.by_rank.values()
            if m.alive and m.rank != self.rank and here[m.rank] == self.ledger.host and not self.life.lives(m.rank)
        ]
        for member in gone:
            self.append(Dead(member.rank, member.incarnation))
        return bool(gone)

    def _timed_out(self, purpose: str) -> str:
        missing = [r for r in range(self.ledger.rules.world) if r not in self.ledger.members.by_rank]
        awaited = missing if not self.ledger.started else self.ledger.awaited()
        hosts = self.ledger.rules.hosts
        where = f" (on hosts {sorted({hosts[rank] for rank in awaited})})" if hosts else ""
        return (
            f"[rank {self.rank} - round {self.ledger.round}] waited {self._timeout_s:.0f} s {purpose}; still missing: "
            f"ranks {awaited}{where}. Nothing was lost; check whether they hang, or raise timeout_s"
        )
