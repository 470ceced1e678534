"""Waiting without CPU: one futex word in the arena, rung after anything a waiter may care about.

A ring that gets lost costs one slice, never a hang: every wait ends after at most a slice and looks at the log again.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import time
from collections.abc import Callable
from functools import partial

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
        number = _SYS_FUTEX.get(platform.machine()) if sys.platform.startswith("linux") else None
        self._futex: Callable[..., int] | None = None
        if number is not None:
            call = ctypes.CDLL(None)["syscall"]  # an object of our own: its argument types are fixed below
            call.argtypes = (
                *(ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32),
                *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32),
            )
            self._futex = partial(call, number, self._address)
        self._timeout = _Timespec(0, 0)
        self._timeout_address = ctypes.addressof(self._timeout)

    def value(self) -> int:
        """Read before looking at the log, so that a ring in between is not missed."""
        return self._word.value

    def ring(self, waiters: int = EVERYBODY) -> None:
        """Wakes so many waiters, those who have waited longest."""
        if self._futex is None:
            self._word.value += 1
            return
        self._futex(_FUTEX_WAKE_OP, waiters, 0, self._address, _ADD_ONE_NEVER_MORE)

    def spin(self, value: int, seconds: float) -> bool:
        """Looks out for a ring for that long, without sleeping. True if there was one."""
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
