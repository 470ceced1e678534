"""Recording one rank's events to a file. Owns who may record where, the thread that writes, and the end of recordings
that nobody closes. Whatever goes wrong with a disk is never felt by training: recording ends with one warning instead.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path

from outpace.errors import OutpaceError
from outpace.observe.schema import Cut, Deferred, Finished, Header, Lost, to_bytes
from outpace.observe.tensorboard import Board

log = logging.getLogger("outpace")

LIMIT_BYTES = 64_000_000  #: of one rank's file
CLOSE_S = 2.0  #: the longest a disk that takes nothing delays the end of a process
FLUSH_S = 0.5
QUEUE_LINES = 8192  #: some megabytes; a disk that is further behind loses records
BATCH_LINES = 64  #: encoding holds the GIL, so training gets its turn after so many
CUT_BYTES = 256  #: kept free for the line that says why recording ended

LogDir = str | os.PathLike[str]

_writers: set[TraceWriter] = set()  # of this process, until they have ended


class Recorder:
    """Writes records to `log_dir/rank-00003.jsonl`, without ever blocking whoever adds them.

    A rank's first incarnation overwrites its file: to keep older recordings, give every run its own directory. A
    restarted rank appends to its file. Recording ends with a warning when the disk fails or the file has reached
    `limit_bytes`; it never raises after construction. A forked child does not record.
    """

    def __init__(
        self, log_dir: LogDir, header: Header, limit_bytes: int = LIMIT_BYTES, board: Board | None = None
    ) -> None:
        check(log_dir, header.rank)
        self.path = file_of(log_dir, header.rank)
        try:
            self._writer = TraceWriter(self.path, header, limit_bytes, board)
        except OSError as error:
            raise _unusable(self.path, error) from error
        self.add = self._writer.put  #: queues a record to be written; never blocks, never raises
        self.board = board  #: shows records in TensorBoard, on rank 0
        weakref.finalize(self, self._writer.abandon).atexit = False
        if not _writers:  # also runs in children of multiprocessing, which skip atexit
            Finalize(None, close_all, exitpriority=0)
        _writers.add(self._writer)

    def add_and_show(self, record: Deferred) -> None:
        self.add(record)
        if self.board is not None:
            self.board.add(record)

    @property
    def is_open(self) -> bool:
        return not self._writer.ended

    def close(self, began_ns: int | None = None) -> None:
        """Writes what is left and a last line. Waits for that, but no longer than `CLOSE_S`."""
        self._writer.stop(began_ns)
        _wait_for(self._writer)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def file_of(log_dir: LogDir, rank: int) -> Path:
    return Path(log_dir, f"rank-{rank:05d}.jsonl").absolute()


def check(log_dir: LogDir, rank: int) -> None:
    """Makes the directory. Raises `OutpaceError` if this rank cannot record there."""
    path = file_of(log_dir, rank)
    for writer in [w for w in _writers if w.path == path and not w.ended]:
        if not writer.is_abandoned:
            advice = "Close that recording first, or give each optimizer a log_dir of its own"
            raise OutpaceError(f"this process already records to {path}. {advice}")
        writer.stop()
        _wait_for(writer)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(open_file(path))
    except OSError as error:
        raise _unusable(path, error) from error


def close_all() -> None:
    for writer in list(_writers):
        writer.stop()
    for writer in list(_writers):
        _wait_for(writer)


def _wait_for(writer: TraceWriter) -> None:
    if writer in _writers:
        _writers.discard(writer)
        writer.wait(CLOSE_S)


def _unusable(path: Path, error: OSError) -> OutpaceError:
    advice = "Nothing was started; give a log_dir that this user can write to, or none"
    return OutpaceError(f"cannot record to {path}: {error.strerror}. {advice}")


def _forget_in_child() -> None:
    """The writing threads exist in the parent only, so only the parent may write."""
    for writer in _writers:
        writer.ended = True
    _writers.clear()


os.register_at_fork(after_in_child=_forget_in_child)


# -- the thread that writes -------------------------------------------------------------------------------------------


def open_file(path: Path) -> int:
    """A descriptor to append to. Raises OSError; does not wait for the reader of a named pipe."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o644)
    os.set_blocking(descriptor, True)
    return descriptor


class TraceWriter:
    """Queues records for the training thread and writes them in a thread of its own."""

    def __init__(self, path: Path, header: Header, limit_bytes: int, board: Board | None = None) -> None:
        self.path = path
        self.ended = False  #: nothing more is taken or written
        self.is_abandoned = False  #: the recorder was garbage-collected
        self._who = f"[rank {header.rank}] recording to {path}"
        self._board = board
        self._room = limit_bytes - CUT_BYTES
        self._queue: deque[Deferred] = deque([(lambda: header,)])
        self._last: Deferred | None = None
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

    def put(self, record: Deferred) -> None:
        """Queues a record. Never blocks and never raises; what a slow disk leaves no room for is counted."""
        if self.ended:
            return
        if len(self._queue) < QUEUE_LINES:
            self._queue.append(record)
        else:
            self._lost += 1

    def stop(self, began_ns: int | None = None) -> None:
        """Tells the thread to write what is queued and a last line, and end. Does not wait for it."""
        if self._thread.is_alive() and not self._stopping.is_set():  # it is not, in a forked child
            self._last = (Finished, time.monotonic_ns(), began_ns)
            self._stopping.set()

    def abandon(self) -> None:
        """As `stop`, within half a second. Takes no lock: the garbage collector calls this, from anywhere."""
        self.is_abandoned = True

    def wait(self, seconds: float) -> None:
        """Waits for the thread to end. One that hangs on a stuck disk is given up, and ends when it can."""
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
                self._append([self._last or (Finished, time.monotonic_ns(), None)])
        except OSError as error:
            self._give_up(error.strerror or str(error))
        finally:
            self.ended = True
            os.close(self._file)
            self._end_board()

    def _goes_on(self) -> bool:
        """Half a second later, whether there is more to come. Writes the scalars of the time before meanwhile."""
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
        if os.fstat(self._file).st_nlink == 0:
            raise OSError(errno.ENOENT, "the file was removed")
        lost = self._lost
        while self._queue and not self.ended:
            count = min(len(self._queue), BATCH_LINES)
            self._append([self._queue.popleft() for _ in range(count)])
        if lost > self._lost_told and not self.ended:
            self._append([(Lost, lost - self._lost_told)])
            self._lost_told = lost

    def _append(self, records: list[Deferred]) -> None:
        """Writes the records that the limit leaves room for."""
        fitting = b""
        for line in map(to_bytes, records):
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
            self._write(b"\n" + to_bytes((Cut, reason)))  # the line before may be torn
