"""The shared memory of one host: three files, mapped and opened by every rank.

Owns creating, checking and closing them, and typed views into the memory. On Linux they are anonymous, vanish with
their last holder whatever kills it, and are not bound by the size of /dev/shm. Elsewhere they are files readable by
their owner only, in a directory that the next start sweeps away.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from outpace.engines.arena.kernel import Life
from outpace.engines.arena.layout import ArenaLayout
from outpace.errors import ArenaFull, ArenaInvalid
from outpace.job.machine import available_bytes

log = logging.getLogger("outpace")

MAGIC = b"outpace\0"
LAYOUT_VERSION = 1
_HEAD = struct.Struct("<8sII16s")  # magic, layout version, length of the description, job id
_DIRECTORY_PREFIX = f"outpace-{os.getuid()}-"
_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOENT)  #: by a seccomp profile, or /proc is not there
NAMES = ("arena", "log", "life", "inbox")
_in_use: set[Path] = set()  # directories of this process: opening and closing their files would drop its life locks


@dataclass
class Files:
    """The open files of an arena, and the directory they lie in if they have names."""

    fds: tuple[int, ...]  #: in the order of `NAMES`
    directory: Path | None = None

    def __post_init__(self) -> None:
        self.arena, self.log, self.life, self.inbox = self.fds

    def close(self) -> None:
        """Closes them. Drops this process's life, so it comes last of all."""
        for fd in self.fds:
            os.close(fd)
        if self.directory is not None:
            _in_use.discard(self.directory)


def create_files() -> Files:
    """New, empty files: anonymous if the system allows it, else in a private directory."""
    directory = os.environ.get("OUTPACE_ARENA_DIR")
    if directory is None and hasattr(os, "memfd_create"):
        try:
            return _anonymous_files()
        except OSError as error:
            if error.errno not in _FORBIDDEN:
                raise
            _say_forbidden(str(error), _usual_directory())
    return _named_files(Path(directory) if directory else _usual_directory())


def _usual_directory() -> Path:
    return Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())


@cache
def _say_forbidden(why: str, directory: Path) -> None:
    log.warning(
        "anonymous shared memory is not available here (memfd_create: %s), so the arena lies in files in %s; if all "
        "ranks are killed, they stay there until the next start. To choose another directory, set OUTPACE_ARENA_DIR",
        *(why, directory),
    )


def _named_files(base: Path) -> Files:
    while True:
        _sweep(base)
        path = Path(tempfile.mkdtemp(prefix=_DIRECTORY_PREFIX, dir=base))
        try:
            return open_files([str(path / name) for name in NAMES], path, os.O_CREAT | os.O_EXCL)
        except FileNotFoundError:
            continue  # another job swept it before this one could mark it as in use


def open_files(paths: Sequence[str], directory: Path | None, flags: int = 0) -> Files:
    """Opens another rank's files. Raises OSError if they are gone.

    The file of lives comes first: a process that has entered it keeps the others from being swept away.
    """
    fds: dict[str, int] = {}
    if directory is not None:
        _in_use.add(directory)
    try:
        for name, path in sorted(zip(NAMES, paths, strict=True), key=lambda named: named[0] != "life"):
            fd = fds[name] = os.open(path, os.O_RDWR | flags | _append_flag(name), 0o600)
            if os.fstat(fd).st_uid != os.geteuid():
                raise ArenaInvalid(f"the arena at {path} belongs to another user; it was left untouched")
            if name == "life" and directory is not None and not (Life(fd).enter() and os.fstat(fd).st_nlink):
                raise FileNotFoundError(errno.ENOENT, "its ranks are gone", str(directory))
    except BaseException:
        for fd in fds.values():
            os.close(fd)
        if directory is not None:
            _in_use.discard(directory)
        raise
    return Files(tuple(fds[name] for name in NAMES), directory)


def remove_directory(files: Files) -> None:
    """Removes the files' names if nobody else is about to use them. Anonymous files need nothing."""
    if files.directory is not None and Life(files.life).leave_empty():
        _remove(files.directory)


def write_header(fd: int, layout: ArenaLayout, job: bytes, description: dict[str, Any]) -> None:
    """Makes the file an arena of this job. Ranks compare their models by the description."""
    body = json.dumps(description).encode()
    os.pwrite(fd, _HEAD.pack(MAGIC, LAYOUT_VERSION, len(body), job) + body, 0)
    try:
        os.ftruncate(fd, layout.total_bytes)
    except OSError as error:
        raise ArenaFull(f"the arena of {amount(layout.total_bytes)} could not be made: {error}") from error


def header_bytes(description: dict[str, Any]) -> int:
    return _HEAD.size + len(json.dumps(description).encode())


def read_header(fd: int, job: bytes | None = None) -> dict[str, Any]:
    """Checks that a file is an arena (of this job), and returns its description."""
    head = os.pread(fd, _HEAD.size, 0)
    if len(head) < _HEAD.size or head[:8] != MAGIC:
        raise ArenaInvalid("the file is not an outpace arena; it was left untouched. Start the job again")
    _, version, length, owner = _HEAD.unpack(head)
    if version != LAYOUT_VERSION:
        raise ArenaInvalid(
            f"the arena has layout version {version}, this outpace writes version {LAYOUT_VERSION}; "
            "run the same outpace on all ranks"
        )
    if job is not None and owner != job:
        raise ArenaInvalid("the arena belongs to another job; it was left untouched. Start the job again")
    try:
        description: dict[str, Any] = json.loads(os.pread(fd, length, _HEAD.size))
    except ValueError as error:
        raise ArenaInvalid("the arena's header is damaged; it was left untouched. Start the job again") from error
    return description


def check_room(layout: ArenaLayout, kept: int) -> None:
    """Raises `ArenaFull`, before anything is written, if there is too little memory for training."""
    need, room = layout.usual_bytes(kept), available_bytes()
    if room is not None and need > room:
        raise ArenaFull(
            f"training with {layout.world} ranks needs {amount(need)} of shared memory, but {amount(room)} are free: "
            f"one vector of {amount(layout.vector_bytes)} for each rank, {kept} + 2 for results, and two snapshots. "
            f"Use fewer ranks, a smaller max_staleness (now {kept}), or a machine with more memory"
        )


def reserve(files: Files, layout: ArenaLayout, kept: int) -> None:
    """Reserves the room of named files up front, so that a full disk is an error here and not a crash later."""
    if files.directory is None:
        return
    try:
        os.posix_fallocate(files.arena, 0, layout.slot(min(kept + 2, layout.slots)))
        for buffer in (0, 1):
            os.posix_fallocate(files.arena, layout.state(buffer), 3 * layout.vector_bytes)
    except OSError as error:
        free = shutil.disk_usage(files.directory).free
        raise ArenaFull(
            f"training needs {amount(layout.usual_bytes(kept))} in {files.directory.parent}, where {amount(free)} "
            f"are free ({error.strerror}). Point OUTPACE_ARENA_DIR at a larger file system, or unset it"
        ) from error


def _append_flag(name: str) -> int:
    return os.O_APPEND if name in ("log", "inbox") else 0


def _anonymous_files() -> Files:
    fds: list[int] = []
    try:
        for name in NAMES:
            fds.append(os.memfd_create(f"outpace-{name}"))
            if flag := _append_flag(name):
                appending = os.open(f"/proc/self/fd/{fds[-1]}", os.O_RDWR | flag)
                os.close(fds[-1])
                fds[-1] = appending
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return Files(tuple(fds))


def _sweep(base: Path) -> None:
    """Removes what a killed run left behind: directories of ours that nobody has entered.

    The lock decides. A directory that another job is just making is either locked by that job, and stays; or by this
    one, and then that job finds it gone and makes another.
    """
    for path in set(base.glob(_DIRECTORY_PREFIX + "*")) - _in_use:
        try:
            fd = os.open(path / "life", os.O_RDWR)
        except OSError:
            with contextlib.suppress(OSError):
                path.rmdir()  # killed before the first file was there
            continue
        try:
            if Life(fd).is_abandoned():
                _remove(path)
        finally:
            os.close(fd)


def _remove(directory: Path) -> None:
    """The file of lives goes last: without it, nobody could tell whether the rest is abandoned."""
    with contextlib.suppress(OSError):
        for name in sorted(NAMES, key=lambda name: name == "life"):
            (directory / name).unlink(missing_ok=True)
        directory.rmdir()


def amount(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"
