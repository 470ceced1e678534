"""What this machine is and offers: its name, its processors, and how much memory can still be used.

What files have left in memory counts as free: the kernel gives it back when somebody needs it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from outpace.errors import InvalidRules

RANK_BYTES = 150_000_000  #: of a rank's own: measured 38 to 143 MB in worlds of 4, for the built-in workloads


@functools.cache
def machine() -> str:
    """A name that processes share if they can share memory: of one boot of one kernel, and within one container."""
    kernel = []
    with suppress(OSError):
        kernel = [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return f"{socket.gethostname()}-{hashlib.sha256(''.join(kernel).encode()).hexdigest()[:8]}"


def processor() -> str:
    """Its name, as its maker gives it; else its kind."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Names(NamedTuple):
    """File names of a version of control groups, and the fields of `memory.stat` that can be reclaimed."""

    limit: str
    used: str
    reclaimable: tuple[str, ...]


_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_V2 = _Names("memory.max", "memory.current", ("inactive_file", "active_file", "slab_reclaimable"))


def available_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What can be used without swapping, on the machine and within every limit on this process. None if unknown."""
    known = [*_of_machine(proc), *_of_groups(proc, groups)]
    return min(known, default=None)


def check_memory(ranks: int) -> None:
    """Raises `InvalidRules` if so many ranks would not fit. Passes where free memory is unknown."""
    free = available_bytes()
    if free is not None and ranks * RANK_BYTES > free:
        fitting = free // RANK_BYTES
        raise InvalidRules(
            f"{ranks:,} ranks need about {ranks * RANK_BYTES / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free "
            f"here: nothing was started. {f'Use --ranks {fitting} or less' if fitting else 'End other programs first'}"
        )


def _of_machine(proc: Path) -> Iterator[int]:
    available = _table(proc / "meminfo").get("MemAvailable:")
    if available is not None:
        yield available * 1024


def _of_groups(proc: Path, groups: Path) -> Iterator[int]:
    """A limit holds for all groups below: those above this process's own count, too."""
    for line in _read(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _along(groups, path, _V2)
        elif "memory" in controllers.split(","):
            yield from _along(groups / "memory", path, _V1)


def _along(top: Path, path: str, names: _Names) -> Iterator[int]:
    """In a container, the path may be the host's; only its last group is visible then, mounted as the top."""
    group = top / path.lstrip("/")
    for place in (group, *group.parents):
        limit, used = (_read(place / name).strip() for name in (names.limit, names.used))
        if limit.isdigit() and used.isdigit():
            stat = _table(place / "memory.stat")
            yield max(0, int(limit) - int(used) + sum(stat.get(name, 0) for name in names.reclaimable))
        if place == top:
            return


def _table(path: Path) -> dict[str, int]:
    rows = (line.split() for line in _read(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
