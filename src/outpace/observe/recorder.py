"""Recording one rank's events to a file. Owns who may record where, and the end of recordings that nobody ends."""

from __future__ import annotations

import os
import weakref
from multiprocessing.util import Finalize
from pathlib import Path

from outpace.errors import OutpaceError
from outpace.observe.tensorboard import Board
from outpace.observe.trace_lines import Header, Line
from outpace.observe.trace_writer import TraceWriter, open_file

LIMIT_BYTES = 64_000_000  #: of one rank's file
CLOSE_S = 2.0  #: the longest a disk that takes nothing holds up the end of a process

LogDir = str | os.PathLike[str]

_writers: set[TraceWriter] = set()  # of this process, until they have ended


class Recorder:
    """Writes lines to `log_dir/rank-00003.jsonl`, without ever holding up whoever adds them.

    A rank's first incarnation begins its file anew: give every run a directory of its own to keep older ones. A
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
        self.add = self._writer.put  #: has a line written soon; never blocks, never raises
        self.board = board  #: what also shows the lines that are given to it
        weakref.finalize(self, self._writer.abandon).atexit = False
        if not _writers:  # also runs in children of multiprocessing, which skip atexit
            Finalize(None, close_all, exitpriority=0)
        _writers.add(self._writer)

    def add_and_show(self, line: Line) -> None:
        """As `add`, and shows it in TensorBoard, if this rank does."""
        self.add(line)
        if self.board is not None:
            self.board.add(line)

    @property
    def is_open(self) -> bool:
        """Whether lines are still written."""
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
    """Where this rank's events go."""
    return Path(log_dir, f"rank-{rank:05d}.jsonl").absolute()


def check(log_dir: LogDir, rank: int) -> None:
    """Makes the directory. Raises `OutpaceError` if this rank cannot record there."""
    path = file_of(log_dir, rank)
    for writer in [w for w in _writers if w.path == path and not w.ended]:
        if not writer.is_abandoned:
            raise OutpaceError(
                f"this process already records to {path}. Close that recording first, or give each optimizer a "
                "log_dir of its own"
            )
        writer.stop()
        _wait_for(writer)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(open_file(path))
    except OSError as error:
        raise _unusable(path, error) from error


def close_all() -> None:
    """Ends all recordings: at the end of the process."""
    for writer in list(_writers):
        writer.stop()
    for writer in list(_writers):
        _wait_for(writer)


def _wait_for(writer: TraceWriter) -> None:
    if writer in _writers:
        _writers.discard(writer)
        writer.wait(CLOSE_S)


def _unusable(path: Path, error: OSError) -> OutpaceError:
    return OutpaceError(
        f"cannot record to {path}: {error.strerror}. Nothing was started; give a log_dir that this user can write to, "
        "or none"
    )


def _forget_in_child() -> None:
    """The threads that write live in the parent only, and so does the right to write."""
    for writer in _writers:
        writer.ended = True
    _writers.clear()


os.register_at_fork(after_in_child=_forget_in_child)
