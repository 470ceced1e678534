"""Which directory to follow. Owns that a race has one for each system, and that the latest of them is meant."""

from __future__ import annotations

from pathlib import Path

from outpace.errors import TraceInvalid
from outpace.observe.trace_reader import named, traced_directories


def check_directory(path: Path) -> None:
    """Raises `TraceInvalid` for what can never become the directory of a run."""
    try:
        if path.is_dir():
            return
        what = "it is a file, and a running job is followed by its directory" if path.exists() else "it does not exist"
    except OSError as error:
        what = f"it cannot be read ({error.strerror})"
    raise TraceInvalid(
        f"there is no run at {named(path)}: {what}. Give the directory that DistributedOptimizer(log_dir=...), "
        "outpace.record or outpace race writes to"
    )


def current_run(path: Path) -> Path:
    """This directory if it has traces; else the one in it that was written to last; this one if there is none."""
    if any(path.glob("rank-*.jsonl")):
        return path
    return max(traced_directories(path), key=_written_ns, default=path)


def _written_ns(directory: Path) -> tuple[int, str]:
    """When anything was last written to its traces; what was removed meanwhile counts for nothing."""
    times = [0]
    for file in directory.glob("rank-*.jsonl"):
        try:
            times.append(file.stat().st_mtime_ns)
        except OSError:
            continue
    return max(times), directory.name
