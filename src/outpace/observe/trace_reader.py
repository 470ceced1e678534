"""Reading a trace. Owns putting the ranks' files together: whose run they are of, and one clock for all.

Never believes a file: what makes no sense is left out and said, and `TraceInvalid` is all that is ever raised.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from outpace.errors import TraceInvalid
from outpace.observe.trace import RankTrace, Trace
from outpace.observe.trace_file import TraceFile
from outpace.observe.trace_life import Life
from outpace.observe.trace_values import MOST_RANKS, printable

SAME_CLOCK_NS = 60 * 10**9  #: boots of machines of one name that are closer than this are one boot of one machine
NAMED = 8  #: missing ranks that are named; the rest is counted

_ADVICE = "Give the directory that DistributedOptimizer(log_dir=...) or outpace.record wrote to"


def read_trace(path: str | Path) -> Trace:
    """The trace in a directory, or in one rank's file.

    Uses what can be read and says in `skipped` what was left out. Raises `TraceInvalid` if that is everything. Of a
    directory in which several runs wrote, the newest one is read.
    """
    files = [TraceFile(file) for file in _files(Path(path))]
    newest = _newest(files)
    ranks: dict[int, TraceFile] = {}
    skipped: list[str] = []
    for file in files:
        why = _unusable(file, newest, ranks)
        skipped += file.skipped(why)
        if not why and file.rank is not None:
            ranks[file.rank] = file
    if not ranks:
        raise TraceInvalid(_nothing(path, skipped))
    world = max([newest.world or 0, *(rank + 1 for rank in ranks)])
    return _assembled(world, newest, dict(sorted(ranks.items())), [*skipped, *_missing(world, ranks)])


def _files(path: Path) -> list[Path]:
    try:
        if path.is_file():
            return [path]
        if not path.is_dir():
            raise TraceInvalid(f"there is no trace at {named(path)}: neither a directory nor a file. {_ADVICE}")
        found = sorted(file for file in path.glob("rank-*.jsonl") if file.is_file())
    except OSError as error:
        raise TraceInvalid(f"{named(path)} cannot be read: {error.strerror}. {_ADVICE}") from error
    if not found:
        raise TraceInvalid(_no_trace_in(path))
    return found


def _no_trace_in(path: Path) -> str:
    """A race has a directory for each system, and the traces in those."""
    inside = [printable(directory.name, 100) for directory in traced_directories(path)]
    if not inside:
        return f"there is no trace in {named(path)}: it has no rank-*.jsonl. {_ADVICE}"
    more = f" and {len(inside) - NAMED} more" if len(inside) > NAMED else ""
    return f"there is no trace in {named(path)} itself, but in: {', '.join(inside[:NAMED])}{more}. Give one of these"


def traced_directories(path: Path) -> list[Path]:
    """The directories in this one that have traces, in order of their names; none if it cannot be read."""
    try:
        return sorted({file.parent for file in path.glob("*/rank-*.jsonl") if file.is_file()})
    except OSError:
        return []


def _newest(files: Iterable[TraceFile]) -> Life:
    """The header that speaks for the run; an empty one if there is none."""
    headers = [file.latest for file in files if file.latest is not None]
    return max(headers, key=lambda life: life.unix_ns, default=Life())


def _unusable(file: TraceFile, newest: Life, taken: dict[int, TraceFile]) -> str:
    """Why a file is left out, or nothing."""
    if not any(life.steps for life in file.lives):
        return "it has no step, so this rank is left out"
    if file.rank is None or file.rank >= MOST_RANKS:
        return "whose it is cannot be told: neither a header nor its name says so; left out"
    world = file.latest.world if file.latest else newest.world
    if world != newest.world:
        return f"it is of another run, with {world} ranks instead of {newest.world}; left out"
    if file.rank in taken:
        return f"rank {file.rank} has another file; this one is left out"
    return ""


def _assembled(world: int, newest: Life, files: dict[int, TraceFile], skipped: list[str]) -> Trace:
    """All on one clock, which begins with the first thing that happened."""
    lives = [life for file in files.values() for life in file.lives]
    _share_clocks(lives)
    start = min(ns + life.clock_ns for life in lives for ns in life.moments())
    for life in lives:
        life.clock_ns -= start
    rounds = sorted((r.shifted(life.clock_ns) for life in lives for r in life.rounds), key=lambda r: r.at_ns)
    ranks = {rank: _rank_trace(rank, file) for rank, file in files.items()}
    return Trace(world, newest.strategy, newest.payload_bytes, ranks, tuple(rounds), tuple(skipped))


def _share_clocks(lives: list[Life]) -> None:
    """Ranks of one machine have one clock, but each took the time of day for itself: the first one's holds for all.

    Who has no header is given the first clock there is.
    """
    known: list[Life] = []
    for life in sorted(lives, key=lambda life: life.world is None):
        same = (k for k in known if life.world is None or is_same_machine(life, k))
        first = next(same, None)
        if first is None:
            known.append(life)
        else:
            life.clock_ns = first.clock_ns


def is_same_machine(one: Life, other: Life) -> bool:
    """Whether their times are on one clock."""
    return one.host == other.host and abs(one.clock_ns - other.clock_ns) < SAME_CLOCK_NS


def _rank_trace(rank: int, file: TraceFile) -> RankTrace:
    steps = tuple(step.shifted(life.clock_ns) for life in file.lives for step in life.steps)
    pauses = tuple(pause.shifted(life.clock_ns) for life in file.lives for pause in life.pauses)
    return RankTrace(rank, file.lives[-1].host, steps, pauses, file.lives[-1].tally)


def _missing(world: int, ranks: Iterable[int]) -> list[str]:
    missing = sorted(set(range(world)) - set(ranks))
    if not missing:
        return []
    more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    return [f"nothing of rank {', '.join(map(str, missing[:NAMED]))}{more} of {world} can be read"]


def _nothing(path: str | Path, skipped: list[str]) -> str:
    return f"nothing in {named(path)} can be read as a trace ({'; '.join(skipped[:NAMED])}). {_ADVICE}"


def named(path: str | Path) -> str:
    """A path in a message."""
    return f"'{printable(str(path), 300)}'"
