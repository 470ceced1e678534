"""The thread that writes a rank's trace. Owns the file and everything that can go wrong with a disk.

Whatever that is, it must never be felt by training: recording ends with one warning instead.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from outpace.observe.tensorboard import Board
from outpace.observe.trace_lines import Header, Line, cut_line, finished_line, header_line, lost_line, to_bytes

log = logging.getLogger("outpace")

FLUSH_S = 0.5
QUEUE_LINES = 8192  #: some megabytes; more than that wait for no disk
BATCH_LINES = 64  #: formatting holds the GIL, so training gets its turn after so many
CUT_BYTES = 256  #: kept free for the line that says why recording ended


def open_file(path: Path) -> int:
    """A descriptor to append to. Raises OSError; does not wait for the reader of a named pipe."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o644)
    os.set_blocking(descriptor, True)
    return descriptor


class TraceWriter:
    """Takes lines from the training thread, and writes them from a thread of its own."""

    def __init__(self, path: Path, header: Header, limit_bytes: int, board: Board | None = None) -> None:
        self.path = path
        self.ended = False  #: nothing more is taken or written
        self.is_abandoned = False  #: whoever added lines is gone
        self._who = f"[rank {header.rank}] recording to {path}"
        self._board = board
        self._room = limit_bytes - CUT_BYTES
        self._queue: deque[Line] = deque([(header_line, header)])
        self._last: Line | None = None
        self._lost = self._lost_told = 0
        self._stopping = threading.Event()
        self._file = open_file(path)
        state = os.fstat(self._file)
        self._size = state.st_size
        if header.incarnation == 1 and stat.S_ISREG(state.st_mode):
            os.ftruncate(self._file, 0)
            self._size = 0
        self._thread = threading.Thread(target=self._run, name=f"trace of rank {header.rank}", daemon=True)
        self._thread.start()

    def put(self, line: Line) -> None:
        """Has the line written soon. Never blocks and never raises; what a slow disk leaves no room for is counted."""
        if self.ended:
            return
        if len(self._queue) < QUEUE_LINES:
            self._queue.append(line)
        else:
            self._lost += 1

    def stop(self, began_ns: int | None = None) -> None:
        """Has the thread write what is queued and a last line, and end. Does not wait for it."""
        if self._thread.is_alive() and not self._stopping.is_set():  # it is not, in a forked child
            self._last = (finished_line, time.monotonic_ns(), began_ns)
            self._stopping.set()

    def abandon(self) -> None:
        """As `stop`, within half a second. Takes no lock: the garbage collector calls this, from anywhere."""
        self.is_abandoned = True

    def wait(self, seconds: float) -> None:
        """Until the thread has ended. One that a stuck disk holds for longer is given up, and ends when it can."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.ended = True
            log.warning("%s was given up: the disk has taken nothing for %.0f s", self._who, seconds)

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._flush()
            while self._goes_on():
                self._flush()
            self._flush()
            if not self.ended:
                self._append([self._last or (finished_line, time.monotonic_ns(), None)])
        except OSError as error:
            self._give_up(error.strerror or str(error))
        finally:
            self.ended = True
            os.close(self._file)
            self._end_board()

    def _goes_on(self) -> bool:
        """Half a second later, whether there is more to come. The scalars of the time before are shown meanwhile."""
        if self._board is not None:
            self._board.flush()
        return not self._stopping.wait(FLUSH_S) and not self.is_abandoned

    def _end_board(self) -> None:
        """Scalars go on also when the trace has reached its limit."""
        if self._board is not None:
            while not self._board.ended and self._goes_on():
                pass
            self._board.close()

    def _flush(self) -> None:
        """Writes all that is queued, in batches."""
        if os.fstat(self._file).st_nlink == 0:
            raise OSError(errno.ENOENT, "the file was removed")
        lost = self._lost
        while self._queue and not self.ended:
            count = min(len(self._queue), BATCH_LINES)
            self._append([self._queue.popleft() for _ in range(count)])
        if lost > self._lost_told and not self.ended:
            self._append([(lost_line, lost - self._lost_told)])
            self._lost_told = lost

    def _append(self, lines: list[Line]) -> None:
        """Writes the lines that the limit leaves room for."""
        fitting = b""
        for line in map(to_bytes, lines):
            if self._size + len(fitting) + len(line) > self._room:
                self._write(fitting)
                raise OSError(errno.EFBIG, f"limit of {self._room + CUT_BYTES} bytes reached")
            fitting += line
        self._write(fitting)

    def _write(self, data: bytes) -> None:
        while data:
            count = os.write(self._file, data)
            self._size += count
            data = data[count:]

    def _give_up(self, reason: str) -> None:
        if self.ended:
            return  # a warning was given when this thread was given up
        self.ended = True
        log.warning("%s ended: %s. Training goes on without", self._who, reason)
        with suppress(OSError):  # then the warning is all there is
            self._write(b"\n" + to_bytes((cut_line, reason)))  # the line before may be torn
