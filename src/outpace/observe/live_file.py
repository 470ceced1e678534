"""One rank's file while it grows. Owns what was read of it so far; never raises, whatever the file is or becomes."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from outpace.observe.live_rank import RankState
from outpace.observe.trace_events import LINE_BYTES

HEAD_BYTES = 512  #: a header has the process and the time in it, so files that begin alike are one file
TAIL_BYTES = 4_000_000  #: of a file that was long already when it was first seen, its end is read
CHUNK_BYTES = 1_000_000


class FollowedFile:
    """Reads what is new in a file, line by line. A last line without its end waits for the rest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        numbered = re.fullmatch(r"rank-(\d{1,7})\.jsonl", path.name, re.ASCII)
        self._number = int(numbered[1]) if numbered else None
        self._head = b""
        self._anew(None)

    def read(self) -> RankState:
        """Reads on, from the beginning if the file was replaced or emptied. Returns all that is known."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return self.state  # it comes back, or it does not
        try:
            self._read(descriptor)
        except OSError:
            pass  # for instance a directory, or a server that is gone for now
        finally:
            os.close(descriptor)
        return self.state

    def _read(self, descriptor: int) -> None:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            return
        head = os.pread(descriptor, HEAD_BYTES, 0)
        if self._inode != about.st_ino or about.st_size < self._offset or not head.startswith(self._head):
            self._anew(about.st_ino)
        self._head = head
        if self._offset == 0 and about.st_size > TAIL_BYTES + LINE_BYTES:
            self._skip_to_the_end(descriptor, about.st_size)
        while self._offset < about.st_size:
            data = os.pread(descriptor, min(CHUNK_BYTES, about.st_size - self._offset), self._offset)
            if not data:
                break
            self._offset += len(data)
            self._feed(data)

    def _anew(self, inode: int | None) -> None:
        self.state = RankState(self._number)
        self._inode = inode
        self._offset = 0
        self._head = b""
        self._rest = b""  # a line whose end was not there yet
        self._is_passing = False  # over a line that is too long, or was met in its middle

    def _skip_to_the_end(self, descriptor: int, size: int) -> None:
        header = os.pread(descriptor, TAIL_BYTES, 0).split(b"\n", 1)[0]
        self.state.take(header)
        self._offset, self._is_passing = size - TAIL_BYTES, True

    def _feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not self._is_passing:
                self.state.take(line if len(line) < LINE_BYTES else None)
            self._is_passing = False
        if len(rest) >= LINE_BYTES and not self._is_passing:
            self.state.take(None)
            self._is_passing = True
        self._rest = b"" if self._is_passing else rest
