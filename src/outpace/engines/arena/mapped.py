"""A file in this process's memory, which can be taken out at once, whoever still looks at it. Owns the address range.

Python unmaps a file only when nobody has a view of it, and keeps the file open until then: traces of an exception, or a
cycle that the garbage collector has not come to, would keep an arena alive. So Python maps nothing but room for
addresses; the file is put in there, and empty memory in its place when it is given back.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

_FIXED, _NO_RESERVE = 0x10, 0x4000  # MAP_FIXED and MAP_NORESERVE of Linux, which Python does not name
_EMPTY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE


def mapped(fd: int, nbytes: int) -> mmap.mmap:
    """The file's first bytes, shared with all who map it. Raises OSError, and ValueError if there are not so many."""
    if os.fstat(fd).st_size < nbytes:
        raise ValueError(f"the arena should have {nbytes} bytes, and has {os.fstat(fd).st_size}")
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
    """Takes the file out. Views of it are views of zeros from then on."""
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
