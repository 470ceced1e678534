"""Whether so many ranks fit into this machine's memory. Owns the estimate; a race that swaps shows nothing."""

from __future__ import annotations

from pathlib import Path

from outpace.errors import InvalidRules

RANK_BYTES = 150_000_000  #: of a rank's own: measured 38 to 143 MB in worlds of 4, for the built-in workloads


def check_memory(ranks: int) -> None:
    """Raises `InvalidRules` if so many ranks would not fit. Where nothing is known of memory, they do."""
    free = available_bytes()
    if free is not None and ranks * RANK_BYTES > free:
        fitting = free // RANK_BYTES
        raise InvalidRules(
            f"{ranks:,} ranks need about {ranks * RANK_BYTES / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free "
            f"here: nothing was started. {f'Use --ranks {fitting} or less' if fitting else 'End other programs first'}"
        )


def available_bytes() -> int | None:
    """What can be used without swapping, on the machine and within the limit of its container."""
    known = [free for free in (_of_machine(), _of_container()) if free is not None]
    return min(known, default=None)


def _of_machine() -> int | None:
    lines = _read("/proc/meminfo").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _of_container() -> int | None:
    limit, used = (_read(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    return max(0, int(limit) - int(used)) if limit.isdigit() and used.isdigit() else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
