"""What one process asks of the kernel: mapped memory, barriers, a bell, locks that show which ranks live, test faults.

Mapping: the arena's file can be unmapped at once, even while it has views. Python unmaps a file only when it has no
views left, and keeps it open until then, so that a traceback or an uncollected cycle would keep an arena alive. So
Python maps only an address range. The file is mapped over it, and later replaced by empty memory.

Memory order: Python has no atomics, and a processor may show plain writes to other processes out of order. Decision
docs/decisions/0013-memory-order.md says which order is needed where, and what guarantees it.

Waiting without CPU: one futex word in the arena, rung after anything a waiting rank may care about. A lost ring costs
one slice, never a hang: every wait ends after at most a slice and reads the log again.

Liveness: each rank holds a POSIX record lock on its own byte of one file. The kernel drops the lock when the process
dies, at once and whatever killed it. Forked children do not inherit it. Closing any descriptor of the file would drop
it, too, so the file is opened once and kept. There is no heartbeat, so a slow rank is never suspected.

Faults: `OUTPACE_FAULT=stop:reducing:17` stops this process (SIGSTOP) the first time it passes the point `reducing` in
round 17 or later; `kill` ends it with SIGKILL. Tests use it where the guarantees are hardest to keep.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import mmap
import os
import platform
import signal
import struct
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from threading import Lock
from typing import Any, NamedTuple

import torch

from outpace.engines.arena.layout import PAGE, ArenaLayout
from outpace.errors import ArenaFull

log = logging.getLogger("outpace")

#: by the manuals of these, only a read may pass an earlier write to another place
_IS_STRONG = platform.machine() in ("x86_64", "AMD64", "s390x")
_SYS_MEMBARRIER = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "loongarch64": 283, "ppc64le": 365, "s390x": 356}
_GLOBAL_EXPEDITED, _REGISTER_GLOBAL_EXPEDITED = 1 << 1, 1 << 2


def take_part() -> None:
    """Makes other processes' barriers apply to this one. Every process that maps an arena calls it first."""
    _membarrier()


def before_showing() -> None:
    """Orders everything read and written before it ahead of everything written after it, for all processes.

    A process that sees a later write also sees the earlier ones, without a barrier of its own.
    """
    if not _IS_STRONG:
        _everywhere()


def before_looking() -> None:
    """As `before_showing`, and also orders earlier writes ahead of later reads."""
    if _IS_STRONG:
        Lock().acquire(blocking=False)  # one instruction that no read and no write can pass: a new lock is always free
    else:
        _everywhere()


def _everywhere() -> None:
    barrier = _membarrier()
    if barrier is None:
        _warn()
    else:
        barrier()


def _system_call(numbers: dict[str, int], *types: Any) -> Callable[..., int] | None:
    """A system call by its number on this processor; None if that is not known."""
    number = numbers.get(platform.machine()) if sys.platform.startswith("linux") else None
    if number is None:
        return None
    call = ctypes.CDLL(None)["syscall"]  # an object of our own: its argument types are fixed
    call.argtypes = (ctypes.c_long, *types)
    return partial(call, number)


@cache
def _membarrier() -> Callable[[], int] | None:
    """A barrier in every running thread of all processes that take part: `membarrier(2)`. None if it is missing."""
    call = _system_call(_SYS_MEMBARRIER, ctypes.c_int, ctypes.c_uint, ctypes.c_int)
    if call is None or call(_REGISTER_GLOBAL_EXPEDITED, 0, 0) != 0:
        return None
    return partial(call, _GLOBAL_EXPEDITED, 0, 0)


os.register_at_fork(after_in_child=_membarrier.cache_clear)  # a child takes part on its own


@cache
def _warn() -> None:
    log.warning(
        "membarrier(2) is not available here (Linux before 4.16, or forbidden), and a %s processor may show one rank's "
        "writes to another out of order. Training goes on, relying on the order that the kernel's reads and writes "
        "give. Allow membarrier in the container's seccomp profile",
        platform.machine(),
    )


SLICE_S = 0.010
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_FUTEX_WAIT, _FUTEX_WAKE_OP = 0, 5
_ADD_ONE_NEVER_MORE = (1 << 28) | (1 << 12)  # *word += 1; wake the second set only if the old value was 0
EVERYBODY = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Bell:
    """A counter that can be waited on. Without futexes, waiting is a short sleep."""

    def __init__(self, word: ctypes.c_uint32) -> None:
        self._word = word
        self._address = ctypes.addressof(word)
        pointer, number = ctypes.c_void_p, ctypes.c_uint32
        call = _system_call(_SYS_FUTEX, pointer, ctypes.c_int, number, pointer, pointer, number)
        self._futex = None if call is None else partial(call, self._address)
        self._timeout = _Timespec(0, 0)
        self._timeout_address = ctypes.addressof(self._timeout)

    def value(self) -> int:
        """Read this before the log, so that a ring in between is not missed."""
        return self._word.value

    def ring(self, waiters: int = EVERYBODY) -> None:
        """Wakes this many waiters, the longest waiting first."""
        if self._futex is None:
            self._word.value += 1
            return
        self._futex(_FUTEX_WAKE_OP, waiters, 0, self._address, _ADD_ONE_NEVER_MORE)

    def spin(self, value: int, seconds: float) -> bool:
        """Watches for a ring for that long, without sleeping. True if there was one."""
        word, end = self._word, time.monotonic() + seconds
        while word.value == value:
            if time.monotonic() > end:
                return False
        return True

    def wait(self, value: int, seconds: float = SLICE_S) -> None:
        """Sleeps until rung, if the bell still shows `value`, or for that long (under a second). Releases the GIL."""
        if seconds <= 0:
            return
        if self._futex is None:
            time.sleep(min(seconds, 0.001))
            return
        self._timeout.nanoseconds = int(seconds * 1e9)
        self._futex(_FUTEX_WAIT, value, self._timeout_address, None, 0)


_FLOCK = struct.Struct("hhlli4x") if sys.platform.startswith("linux") else struct.Struct("qqihh")

_USERS = 1 << 30  #: a byte beyond all ranks, with a shared lock of all processes that use the files


class Life:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def take(self, rank: int) -> bool:
        """Marks this process as the living process of `rank`. False if another process still is."""
        return self._locks(fcntl.LOCK_EX, rank, 1)

    def wait_for(self, rank: int) -> None:
        """Becomes the living process of `rank` as soon as no other is."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, rank, os.SEEK_SET)

    def drop(self, rank: int) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, rank, os.SEEK_SET)

    def enter(self) -> bool:
        """Marks the files beside this one as used by this process. False if another process is removing them."""
        return self._locks(fcntl.LOCK_SH, _USERS, 1)

    def leave_empty(self) -> bool:
        """Takes that back. True if nobody else uses them; then nobody can enter until this file is closed."""
        self.drop(_USERS)
        return self._locks(fcntl.LOCK_EX, _USERS, 1)

    def is_abandoned(self) -> bool:
        """Whether no process uses the files or is the living process of a rank; then nobody can enter, as above."""
        return self._locks(fcntl.LOCK_EX, 0, 0)

    def lives(self, rank: int) -> bool:
        """Whether another process holds `rank`. Not for this process's own rank."""
        return self._probe(rank)[0] != fcntl.F_UNLCK

    def holder(self, rank: int) -> int:
        """The process id of the living holder, 0 if there is none."""
        kind, pid = self._probe(rank)
        return 0 if kind == fcntl.F_UNLCK else pid

    def _locks(self, kind: int, start: int, length: int) -> bool:
        """Takes a lock unless another process's lock forbids it. Length 0 means everything from `start` on."""
        try:
            fcntl.lockf(self._fd, kind | fcntl.LOCK_NB, length, start, os.SEEK_SET)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def _probe(self, rank: int) -> tuple[int, int]:
        if sys.platform.startswith("linux"):
            request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, rank, 1, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, request))
        else:
            request = _FLOCK.pack(rank, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
            _, _, pid, kind, _ = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, request))
        return kind, pid


POINTS = (
    *("depositing", "before-append", "after-append", "before-wake"),
    *("reducing", "opening-attempt", "applying", "writing-snapshot"),
)


class Faults:
    def __init__(self) -> None:
        self._armed: tuple[str, int, int] | None = None
        asked = os.environ.get("OUTPACE_FAULT")
        if asked:
            action, point, round_ = asked.split(":")
            if point not in POINTS:
                raise ValueError(f"OUTPACE_FAULT names point {point!r}; choose one of {', '.join(POINTS)}")
            number = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}[action]
            self._armed = (point, int(round_), number)

    def at(self, point: str, round_: int) -> None:
        if self._armed is not None and self._armed[0] == point and round_ >= self._armed[1]:
            number = self._armed[2]
            self._armed = None
            os.kill(os.getpid(), number)


_FIXED, _NO_RESERVE = 0x10, 0x4000  # MAP_FIXED and MAP_NORESERVE of Linux, which Python does not name
_EMPTY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE


def mapped(fd: int, nbytes: int) -> mmap.mmap:
    """The file's first bytes, shared with all that map it. Raises OSError, and ValueError if it is shorter."""
    if os.fstat(fd).st_size < nbytes:
        raise ValueError(f"the arena should have {nbytes} bytes, but has {os.fstat(fd).st_size}")
    if sys.platform.startswith("linux"):
        try:
            room = mmap.mmap(-1, nbytes, _EMPTY)
        except OSError:
            pass  # a kernel that lends no more addresses than it has memory; what is shared is not counted there
        else:
            _put(room, mmap.MAP_SHARED, fd)
            return room
    return mmap.mmap(fd, nbytes)


def give_back(room: mmap.mmap) -> None:
    """Unmaps the file. Views of it show zeros from then on."""
    if sys.platform.startswith("linux"):
        _put(room, _EMPTY, -1)


def _put(room: mmap.mmap, flags: int, fd: int) -> None:
    call = ctypes.CDLL(None, use_errno=True)["mmap"]
    call.restype = ctypes.c_void_p
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_int64)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    if call(address, len(room), mmap.PROT_READ | mmap.PROT_WRITE, flags | _FIXED, fd, 0) != address:
        error = ctypes.get_errno()
        raise OSError(error, f"the arena could not be mapped (errno {error})")


_POPULATE_READ = 22  # MADV_POPULATE_READ, which Python does not name; what is shared may be written then, too


class Place(NamedTuple):
    """Offsets of a vector, and of what goes with it."""

    vector: int
    meta: int


class Arena:
    def __init__(self, fd: int, layout: ArenaLayout) -> None:
        take_part()
        self.layout = layout
        self.rows = {  #: by rank and row
            (rank, row): Place(layout.row(rank, row), layout.row_meta(rank, row))
            for rank in range(layout.world)
            for row in range(layout.rows)
        }
        self.slots = [Place(layout.slot(slot), layout.slot_meta(slot)) for slot in range(layout.slots)]
        self._map = mapped(fd, layout.total_bytes)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.raw = memoryview(self._map)
        self._touched: set[int] = set()
        self.word = ctypes.c_uint32.from_buffer(self._map, layout.control)

    def close(self) -> None:
        """Gives the memory back at once. Remaining views of it show zeros."""
        with contextlib.suppress(OSError):  # then it is given back when nobody has a view of it any more
            give_back(self._map)

    def region(self, offset: int, nbytes: int) -> torch.Tensor:
        return self.bytes[offset : offset + nbytes]

    def touch(self, offset: int, nbytes: int) -> None:
        """Maps the pages of what is about to be used into this process at once, instead of one by one."""
        if offset not in self._touched:
            self._touched.add(offset)
            self._populate(offset, nbytes)

    def touch_ahead(self, rank: int) -> None:
        """Touches what this rank writes in the first round: its row, and its part of the first slot. Called before it
        joins, so that all ranks do it in parallel, and while others still start."""
        layout = self.layout
        self.touch(self.rows[rank, 0].vector, layout.vector_bytes)
        part = layout.vector_bytes // layout.world
        self._populate(self.slots[0].vector + rank * part, part)

    def _populate(self, offset: int, nbytes: int) -> None:
        start = offset - offset % mmap.PAGESIZE
        with contextlib.suppress(OSError, ValueError):  # before Linux 5.14, or elsewhere
            self._map.madvise(_POPULATE_READ, start, offset + nbytes - start)

    def punch(self, offset: int, nbytes: int) -> None:
        """Frees all whole pages there: they then read as zeros for all processes, and cost nothing."""
        self._touched.discard(offset)
        start, end = -(-offset // PAGE) * PAGE, (offset + nbytes) // PAGE * PAGE
        if end > start and hasattr(mmap, "MADV_REMOVE"):
            with contextlib.suppress(OSError, ValueError):  # a file system that cannot
                self._map.madvise(mmap.MADV_REMOVE, start, end - start)

    def numbers(self, offset: int, count: int, code: str) -> memoryview[Any]:
        """Typed access to `count` numbers of 8 bytes."""
        return self.raw[offset : offset + 8 * count].cast(code)  # type: ignore[call-overload,no-any-return]

    def write_meta(self, offset: int, blob: bytes) -> None:
        """Stores the metadata of a row or a slot. Refuses what would run into its neighbour."""
        if 8 + len(blob) > self.layout.meta_bytes:
            raise ArenaFull(
                f"the optimizer's hyper-parameters take {len(blob)} bytes and have grown since the start, when "
                f"{self.layout.meta_bytes} were reserved; keep what grows out of param_groups"
            )
        self.raw[offset + 8 : offset + 8 + len(blob)] = blob
        self.raw[offset : offset + 8] = len(blob).to_bytes(8, "little")

    def read_meta(self, offset: int) -> bytes:
        start = offset + 8
        return self._map[start : start + int.from_bytes(self._map[offset:start], "little")]
