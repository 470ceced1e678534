"""Following a job while it runs. Owns which files are looked at, what is new in them, and on which clock it is read.

    follower = Follower("runs/today")
    live = follower.poll()   # as often as you like: reads only what is new
    live.late_words          # 'rank 3 is late: 1.9 s into a step that usually takes 0.3 s'

The job is not asked and does not notice. It writes every half a second, so what is known is at most that old.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from outpace.errors import TraceInvalid
from outpace.observe.live_figures import Live, RankLive, RankState, live_of
from outpace.observe.reader import CHUNK_BYTES, LINE_BYTES, RecordReader, clocks_of, named, newest_of, recordings
from outpace.observe.schema import MOST_RANKS, Header

__all__ = ["Follower", "Live", "RankLive"]

HEAD_BYTES = 512  #: a header holds process and time, so a file that begins alike is the same file
TAIL_BYTES = 4_000_000  #: of a file that was long already when it was first seen, only the end is read


class Follower:
    """Follows the run in one directory. Nothing in it, not even a missing directory, makes it raise."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._files: dict[Path, FollowedFile] = {}

    def poll(self, now_ns: int | None = None) -> Live:
        """What is known now. `now_ns` is the monotonic clock of the ranks' host; by default it is looked up."""
        files = self._found()
        self._files = {path: self._files.get(path) or FollowedFile(path) for path in files}
        for file in self._files.values():
            file.read()
        states = _of_newest_run([file.state for file in self._files.values()])
        return live_of(str(self.directory), states, _now_ns(states) if now_ns is None else now_ns)

    def _found(self) -> list[Path]:
        try:
            return sorted(self.directory.glob("rank-*.jsonl"))
        except OSError:
            return []


class FollowedFile:
    """One rank's file while it grows; never raises, whatever the file is or becomes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: int | None = None
        self._offset = 0
        self._head = b""
        self.state = RankState(RecordReader(path.name))

    def read(self) -> None:
        """Reads on; from the beginning if the file was replaced or emptied."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return  # it comes back, or it does not
        try:
            with suppress(OSError):  # a file server may be gone for now
                self._read(descriptor)
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int) -> None:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            return
        head = os.pread(descriptor, HEAD_BYTES, 0)
        if self._inode != about.st_ino or about.st_size < self._offset or not head.startswith(self._head):
            self._inode, self._offset = about.st_ino, 0
            self.state = RankState(RecordReader(self._path.name))
        self._head = head
        if self._offset == 0 and about.st_size > TAIL_BYTES + LINE_BYTES:
            header, *_ = os.pread(descriptor, LINE_BYTES, 0).split(b"\n", 1)
            self._feed(header + b"\n")
            self.state.reader.jump()
            self._offset = about.st_size - TAIL_BYTES
        while self._offset < about.st_size:
            data = os.pread(descriptor, min(CHUNK_BYTES, about.st_size - self._offset), self._offset)
            if not data:
                break
            self._offset += len(data)
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        for record in self.state.reader.feed(data):
            self.state.take(record)


def _of_newest_run(states: list[RankState]) -> dict[int, RankState]:
    """By rank, those of the newest run: an older one with more ranks leaves files behind."""
    newest = newest_of(state.header for state in states)
    ranks: dict[int, RankState] = {}
    for state in states:
        is_of_this_run = state.header is None or newest is None or state.header.world == newest.world
        rank = state.reader.rank
        if is_of_this_run and rank is not None and rank < MOST_RANKS:
            ranks.setdefault(rank, state)
    return dict(sorted(ranks.items()))


def _now_ns(states: dict[int, RankState]) -> int:
    """On the clock of the first rank's host, which need not be this one: runs may be on a shared disk."""
    first = next((state.header for state in states.values() if state.header is not None), None)
    here = Header.here(0, 1, "", 0)
    theirs, ours = clocks_of([first, here])
    return here.monotonic_ns + ours - theirs


# -- which directory --------------------------------------------------------------------------------------------------


def check_directory(path: Path) -> None:
    """Raises `TraceInvalid` for what can never become the directory of a run."""
    try:
        if path.is_dir():
            return
        what = "it is a file, and a running job is followed by its directory" if path.exists() else "it does not exist"
    except OSError as error:
        what = f"it cannot be read ({error.strerror})"
    writers = "DistributedOptimizer(log_dir=...), outpace.record or outpace race"
    raise TraceInvalid(f"there is no run at {named(path)}: {what}. Give the directory that {writers} writes to")


def current_run(path: Path) -> Path:
    """This directory if it has traces; else, of those in it, the one written to last; this one if there is none."""
    if any(path.glob("rank-*.jsonl")):
        return path
    return max(recordings(path), key=_written_ns, default=path)


def _written_ns(directory: Path) -> tuple[int, str]:
    """When its traces were last written to; files that were removed meanwhile do not count."""
    times = [0]
    for file in directory.glob("rank-*.jsonl"):
        with suppress(OSError):
            times.append(file.stat().st_mtime_ns)
    return max(times), directory.name
