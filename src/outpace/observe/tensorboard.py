"""What rank 0 shows in TensorBoard. Owns the scalars and how many there are.

The training thread queues the same records as for the trace. The thread that writes the trace makes scalars of them
after it has written its own lines. Whatever fails ends the scalars with one warning, and nothing else.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections import Counter, deque
from contextlib import suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from outpace.observe.schema import Deferred, Header, Record, Step, TracedRound

log = logging.getLogger("outpace")

EVERY_S = 0.1  #: points of one scalar are at least this far apart,
EVERY_SHARE = 1e-4  #: and by at least this share of the time so far: a week makes some ten megabytes
SHARES_EVERY_S = 1.0  #: the same for the ranks' shares, of which there may be many
QUEUE_LINES = 8192
LIMIT_BYTES = 64_000_000
SUFFIX = ".outpace"  #: of our own files, which a new run in an old directory deletes

Scalars = dict[str, float]


@cache
def is_installed() -> bool:
    """Whether TensorBoard's format can be written. Importing it takes some 0.2 s: call this before training begins."""
    try:
        import tensorboard.summary.writer.record_writer  # noqa: F401
        from tensorboard.compat.proto import event_pb2, summary_pb2  # noqa: F401
    except Exception as error:  # a broken installation counts as none
        log.info("nothing is written for TensorBoard: %s. Install it with: pip install outpace[tensorboard]", error)
        return False
    return True


def open_board(log_dir: str | os.PathLike[str], header: Header) -> Board | None:
    """Where this rank's scalars go; None for all but rank 0, and where nothing can be written. Never raises."""
    if header.rank != 0 or not is_installed():
        return None
    try:
        return Board(Path(log_dir).absolute(), header)
    except Exception as error:
        _warn(Path(log_dir), error)
        return None


class Board:
    """Makes scalars of records: a point for a step, thinned; rounds are summed up until then."""

    def __init__(self, directory: Path, header: Header, limit_bytes: int = LIMIT_BYTES) -> None:
        if header.incarnation == 1:
            for old in directory.glob(f"events.out.tfevents.*{SUFFIX}"):
                old.unlink()
        now = time.time()
        self.path = directory / f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}{SUFFIX}"
        self.ended = False
        self._clock_s = now - time.monotonic()  # from the monotonic clock to wall-clock time
        self._queue: deque[Deferred] = deque(maxlen=QUEUE_LINES)
        self._room = limit_bytes
        self._file: BinaryIO = self.path.open("ab", buffering=0)
        self._shown_s = self._shared_s = -math.inf
        self._first_s, self._apart = 0.0, 1.0  # when it began, and how many times further apart points are by now
        self._rounds = self._given = self._stale = 0  # since the last point; contributions, and how stale together
        self._shares: Counter[int] = Counter()
        self._samples, self._since_ns = 0.0, 0
        self._held: Step | None = None  # the last step, if it was too soon after the one that was shown
        self._write(_encoded(now, file_version="brain.Event:2"))

    def add(self, record: Deferred) -> None:
        """Queues a record. Never blocks and never raises; of too many, the oldest are forgotten."""
        if not self.ended:
            self._queue.append(record)

    def flush(self) -> None:
        """Shows what was added. In the thread that writes the trace; never raises."""
        if self.ended:
            return
        try:
            while self._queue:
                make, *arguments = self._queue.popleft()
                self._take(make(*arguments))
        except Exception as error:
            self._end()
            _warn(self.path, error)

    def close(self) -> None:
        """Shows what is left, the last step in any case, and ends. Never raises."""
        self.flush()
        try:
            if self._held is not None:
                self._show(self._held)
        except Exception as error:
            _warn(self.path, error)
        self._end()

    def _end(self) -> None:
        if not self.ended:
            self.ended, self._held = True, None
            self._queue.clear()
            with suppress(OSError):
                self._file.close()

    def _take(self, record: Record) -> None:
        if isinstance(record, Step):
            self._step(record)
        elif isinstance(record, TracedRound) and record.contributions:
            self._rounds += 1
            self._given += len(record.contributions)
            self._stale += sum(record.number - given.version for given in record.contributions)
            self._shares.update(given.rank for given in record.contributions)

    def _step(self, step: Step) -> None:
        self._samples += step.samples or 0.0
        end_s = step.end_ns / 1e9
        self._first_s = self._first_s or end_s
        self._apart = max(1.0, (end_s - self._first_s) * EVERY_SHARE / EVERY_S)
        if end_s - self._shown_s < EVERY_S * self._apart:
            self._held = step
        else:
            self._show(step)

    def _show(self, step: Step) -> None:
        end_s = step.end_ns / 1e9
        scalars = {**step_scalars(step), **self._speed(step), **self._round_scalars()}
        if end_s - self._shared_s >= SHARES_EVERY_S * self._apart and self._shares:
            self._shared_s = end_s
            scalars |= {f"share/rank_{rank:02d}": n / self._shares.total() for rank, n in sorted(self._shares.items())}
        self._shown_s, self._held = end_s, None
        self._write(_encoded_scalars(self._clock_s + end_s, step.number, scalars))

    def _speed(self, step: Step) -> Scalars:
        """Samples of this rank since the last point."""
        seconds = (step.end_ns - (self._since_ns or step.begin_ns)) / 1e9
        speed = {"samples_per_s": self._samples / seconds} if self._samples and seconds > 0 else {}
        self._samples, self._since_ns = 0.0, step.end_ns
        return speed

    def _round_scalars(self) -> Scalars:
        if not self._rounds:
            return {}
        scalars = {"rounds/contributions": self._given / self._rounds, "staleness": self._stale / self._given}
        self._rounds = self._given = self._stale = 0
        return scalars

    def _write(self, data: bytes) -> None:
        """All or nothing: a reader stops at a torn record."""
        if len(data) > self._room:
            raise OSError("its limit is reached")
        self._room -= len(data)
        if self._file.write(data) != len(data):
            raise OSError("the disk is full")


def step_scalars(step: Step) -> Scalars:
    scalars = {
        "step/compute_ms": step.compute_s * 1000,
        "step/waited_ms": step.waited_s * 1000,
        "step/late_by_rounds": step.late,
        "loss": step.loss,
    }
    return {name: float(value) for name, value in scalars.items() if value is not None}


def _encoded(wall_s: float, **event: Any) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    framed = BytesIO()
    RecordWriter(framed).write(Event(wall_time=wall_s, **event).SerializeToString())
    return framed.getvalue()


def _encoded_scalars(wall_s: float, step: int, scalars: Scalars) -> bytes:
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
    return _encoded(wall_s, step=step, summary=Summary(value=values))


def _warn(path: Path, error: Exception) -> None:
    log.warning("[rank 0] writing %s for TensorBoard ended: %s. Training and its trace go on without", path, error)
