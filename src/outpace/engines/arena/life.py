"""Who lives: each rank holds a POSIX record lock on its own byte of one file.

The kernel drops the lock when the process dies, at once and whatever killed it. Forked children do not inherit it.
Closing any descriptor of the file would drop it too, so the file is opened once and kept. No heartbeat, and therefore
no false suspicion of a rank that is only slow.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys

_FLOCK = struct.Struct("hhlli4x") if sys.platform.startswith("linux") else struct.Struct("qqihh")

_USERS = 1 << 30  #: a byte beyond all ranks, locked together by all who use the files


class Life:
    """The file of lives, opened once per process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def take(self, rank: int) -> bool:
        """Marks this process as the living one of `rank`. False if another process still is."""
        return self._locks(fcntl.LOCK_EX, rank, 1)

    def wait_for(self, rank: int) -> None:
        """Becomes the living one of `rank` as soon as nobody else is."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, rank, os.SEEK_SET)

    def drop(self, rank: int) -> None:
        """Gives up what `take` took."""
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, rank, os.SEEK_SET)

    def enter(self) -> bool:
        """Says that this process uses the files that lie beside this one. False if somebody removes them just now."""
        return self._locks(fcntl.LOCK_SH, _USERS, 1)

    def leave_empty(self) -> bool:
        """Takes that back. True if nobody else uses them; nobody can enter then until this file is closed."""
        self.drop(_USERS)
        return self._locks(fcntl.LOCK_EX, _USERS, 1)

    def is_abandoned(self) -> bool:
        """Whether no process uses the files, nor is the living one of any rank; nobody can enter then, as above."""
        return self._locks(fcntl.LOCK_EX, 0, 0)

    def lives(self, rank: int) -> bool:
        """Whether another process holds `rank`. Not meant for one's own."""
        return self._probe(rank)[0] != fcntl.F_UNLCK

    def holder(self, rank: int) -> int:
        """The process id of the living holder, 0 if there is none."""
        kind, pid = self._probe(rank)
        return 0 if kind == fcntl.F_UNLCK else pid

    def _locks(self, kind: int, start: int, length: int) -> bool:
        """Takes a lock if no other process has one that forbids it. Length 0 means all that follows."""
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
