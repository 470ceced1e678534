"""Traces made by hand, line by line: what the format is, not what the recorder makes of it."""

from __future__ import annotations

import json
from pathlib import Path

MS = 1_000_000
BOOT_NS = 5_000_000_000_000_000  # what the monotonic clock showed when the trace began: up for two months
UNIX_S = 1_700_000_000.0


def header(rank: int, world: int, **changes) -> dict:
    return {
        "outpace": "0.1.0",
        "trace": 1,
        "rank": rank,
        "world": world,
        "strategy": "ddp",
        "payload_bytes": 4096,
        "incarnation": 1,
        "host": "a",
        "pid": 100 + rank,
        "monotonic_ns": BOOT_NS,
        "unix_s": UNIX_S,
        **changes,
    }


def steps(times_ms: list[tuple[float, float, float]], begin: int = BOOT_NS, first: int = 1, **more) -> list[dict]:
    """Steps one after the other, from (computing, waiting, applying) in milliseconds."""
    lines = []
    for number, (compute, wait, apply) in enumerate(times_ms, first):
        ready = begin + int(compute * MS)
        end = ready + int((wait + apply) * MS)
        line = {"step": number, "begin": begin, "ready": ready, "end": end}
        lines.append({**line, "waited_s": wait / 1000, "apply_s": apply / 1000, **more})
        begin = end
    return lines


def write(directory: Path, rank: int, lines: list[dict]) -> Path:
    directory.mkdir(exist_ok=True)
    file = directory / f"rank-{rank:05d}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def balanced(directory: Path, world: int = 2, count: int = 3) -> Path:
    """Ranks that all take 10 ms to compute, 2 to communicate and 1 to apply."""
    for rank in range(world):
        write(directory, rank, [header(rank, world), *steps([(10, 2, 1)] * count)])
    return directory


def eager(directory: Path) -> Path:
    """Two hosts whose clocks differ; rank 1's second step is late and goes with round 2."""
    first = [
        header(0, 2, strategy="eager-solo"),
        {**steps([(10, 2, 1)])[0], "round": 0, "version": 0, "late": 0},
        {"round": 0, "at": BOOT_NS + 12 * MS, "world": 2, "contributions": [[0, 1, 0], [1, 1, 0]], "void": False},
        {**steps([(10, 0, 1)], BOOT_NS + 13 * MS, 2)[0], "round": 1, "version": 1, "late": 0},
        {"round": 1, "at": BOOT_NS + 24 * MS, "world": 2, "contributions": [[0, 2, 1]], "void": False},
        {**steps([(10, 5, 1)], BOOT_NS + 24 * MS, 3)[0], "round": 2, "version": 2, "late": 0},
        {"round": 2, "at": BOOT_NS + 40 * MS, "world": 2, "contributions": [[0, 3, 2], [1, 2, 1]], "void": False},
        {"sync": 1, "begin": BOOT_NS + 40 * MS, "end": BOOT_NS + 41 * MS},
        {"finished": BOOT_NS + 43 * MS, "begin": BOOT_NS + 41 * MS},
    ]
    other = 77 * MS  # host b was booted at another time
    second = [
        header(1, 2, strategy="eager-solo", host="b", monotonic_ns=other),
        {**steps([(11, 1, 1)], other)[0], "round": 0, "version": 0, "late": 0},
        {**steps([(18, 0, 1)], other + 13 * MS, 2)[0], "round": 2, "version": 1, "late": 1},
    ]
    write(directory, 0, first)
    write(directory, 1, second)
    return directory
