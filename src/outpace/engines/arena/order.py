"""In which order other processes see what this one does to shared memory. Owns the two barriers, and what they rest on.

Python has no atomics, and a processor may show plain writes to others in another order than they were made in. What is
needed where, and who guarantees it: docs/decisions/0013-memory-order.md.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import sys
from collections.abc import Callable
from functools import cache
from threading import Lock

log = logging.getLogger("outpace")

#: by the manuals of these, only a read may pass an earlier write to another place
_IS_STRONG = platform.machine() in ("x86_64", "AMD64", "s390x")
_SYS_MEMBARRIER = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "loongarch64": 283, "ppc64le": 365, "s390x": 356}
_GLOBAL_EXPEDITED, _REGISTER_GLOBAL_EXPEDITED = 1 << 1, 1 << 2


def take_part() -> None:
    """Lets the others' barriers count in this process, too. Every process that maps an arena calls it first."""
    _membarrier()


def before_showing() -> None:
    """Whatever was read and written before is over for everybody before anything that is written from here on is seen.

    Whoever sees the latter then sees the former, without a barrier of its own.
    """
    if not _IS_STRONG:
        _everywhere()


def before_looking() -> None:
    """As `before_showing`, and also: whatever is read from here on is read after what was written before is seen."""
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


@cache
def _membarrier() -> Callable[[], int] | None:
    """A barrier in every running thread of all processes that take part: `membarrier(2)`. None where it is missing."""
    number = _SYS_MEMBARRIER.get(platform.machine()) if sys.platform.startswith("linux") else None
    if number is None:
        return None
    call = ctypes.CDLL(None)["syscall"]
    call.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_uint, ctypes.c_int)
    if call(number, _REGISTER_GLOBAL_EXPEDITED, 0, 0) != 0:
        return None
    return lambda: int(call(number, _GLOBAL_EXPEDITED, 0, 0))


os.register_at_fork(after_in_child=_membarrier.cache_clear)  # a child takes part on its own


@cache
def _warn() -> None:
    log.warning(
        "membarrier(2) is not available here (Linux before 4.16, or forbidden), and a %s processor may show one rank's "
        "writes to another out of order. outpace goes on, with the order that the kernel's own reads and writes give. "
        "Allow membarrier in the container's seccomp profile",
        platform.machine(),
    )
