"""Reading recordings, finished or still growing. Owns what is believed of a file, and putting all ranks on one clock.

`RecordReader` turns the bytes of one rank's file into records; both `read_trace` and `outpace.observe.live` use it.
Unreadable lines are skipped and counted, and `TraceInvalid` is all that is ever raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from outpace.errors import TraceInvalid
from outpace.observe.schema import (
    FORMAT,
    MOST_RANKS,
    Cut,
    Finished,
    Foreign,
    Header,
    Lost,
    Pause,
    RankTrace,
    Record,
    Step,
    Synchronized,
    Tally,
    Trace,
    TracedRound,
    Unreadable,
    parse,
    printable,
)

LINE_BYTES = 1_000_000  #: a longer line is none of ours
CHUNK_BYTES = 1_000_000
SAID = 3  #: unreadable lines of a file that are named; the rest is counted
SAME_CLOCK_NS = 60 * 10**9  #: hosts of one name that booted within this time of each other are one host
NAMED = 8  #: missing ranks that are named; the rest is counted

_ADVICE = "Give the directory that DistributedOptimizer(log_dir=...) or outpace.record wrote to"


# -- one file ---------------------------------------------------------------------------------------------------------


class RecordReader:
    """Makes records of the bytes of one rank's file, which may come in pieces of any size.

    What it knows depends on the bytes alone, not on how they were cut.
    """

    def __init__(self, name: str) -> None:
        self.name = name  #: of the file
        numbered = re.fullmatch(r"rank-(\d{1,7})\.jsonl", name, re.ASCII)
        self.rank = int(numbered[1]) if numbered else None  #: from the latest header, else from the file's name
        self.header: Header | None = None  #: the latest one
        self.skipped = 0  #: unreadable lines
        self.lost = 0  #: records that a slow disk left no room for
        self.notes: list[str] = []  #: what else is wrong with the file, in words
        self._named: list[str] = []  # the first unreadable lines
        self._unnamed = 0
        self._is_foreign = False
        self._lines = 0
        self._rest = b""  # a line whose end has not come yet
        self._is_passing = False  # over the rest of a line that is not read

    def feed(self, data: bytes) -> Iterator[Record]:
        """The records whose lines end in `data`. To be exhausted before more is fed."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._is_passing:
                self._is_passing = False
            else:
                yield from self._line(line)
        if len(rest) >= LINE_BYTES and not self._is_passing:
            yield from self._line(rest)
            self._is_passing = True
        self._rest = b"" if self._is_passing else rest

    def end(self) -> Iterator[Record]:
        """Reads a last line that has no line break: nothing more will come."""
        if not self._is_passing:
            yield from self._line(self._rest)

    def jump(self) -> None:
        """What is fed next begins somewhere in the middle of a line, which is passed over."""
        self._is_passing, self._rest = True, b""

    def note(self, words: str) -> None:
        if len(self.notes) < SAID:
            self.notes.append(words)

    def in_words(self, why: str = "") -> list[str]:
        """What was left out of this file; `why` if all of it was."""
        words = [*self._named, *self.notes]
        if self._unnamed:
            words.append(f"{self._unnamed} more unreadable lines skipped")
        if self.lost:
            words.append(f"{self.lost} records were lost because the disk was slow")
        return [f"{printable(self.name, 100)}: {said}" for said in (*words, why) if said]

    def _line(self, line: bytes) -> Iterator[Record]:
        self._lines += 1
        if not line.strip():
            return
        try:
            if len(line) >= LINE_BYTES:
                raise Unreadable("is too long")
            record = self._believed(parse(line))
        except Unreadable as error:
            self.skipped += 1
            if self._is_foreign:
                pass  # the format was noted, and that is why
            elif len(self._named) < SAID:
                self._named.append(f"line {self._lines} {error}, skipped")
            else:
                self._unnamed += 1
        else:
            yield record

    def _believed(self, record: Record) -> Record:
        """What a line says can be believed in this file at this place; raises `Unreadable`."""
        if isinstance(record, Foreign):
            self._is_foreign = True
            self.note(f"is of format {record.trace}, and this version of outpace reads {FORMAT}")
            raise Unreadable("is a header of another format")
        if isinstance(record, Header):
            self._is_foreign = False
            if self.header is not None and record.rank != self.rank:
                raise Unreadable(f"is a header of rank {record.rank} in the file of rank {self.rank}")
            self.header, self.rank = record, record.rank
        elif self._is_foreign:  # such lines may look like ours and mean something else
            raise Unreadable("follows a header of another format")
        elif isinstance(record, Lost):
            self.lost += record.lines
        elif isinstance(record, Cut):
            self.note(f"recording ended early: {record.reason}")
        return record


class _Incarnation:
    """A header and what follows it, on the clock of its host."""

    def __init__(self, header: Header | None) -> None:
        self.header = header  #: None for lines that come before any
        self.steps: list[Step] = []
        self.pauses: list[Pause] = []
        self.rounds: list[TracedRound] = []
        self.tally: Tally | None = None

    def add(self, record: Record) -> None:
        if isinstance(record, Step):
            self.steps.append(record)
        elif isinstance(record, TracedRound):
            self.rounds.append(record)
        elif isinstance(record, Tally):
            self.tally = record
        elif isinstance(record, (Synchronized, Finished)) and record.pause is not None:
            self.pauses.append(record.pause)

    def begins_ns(self) -> Iterator[int]:
        yield from (step.begin_ns for step in self.steps)
        yield from (pause.begin_ns for pause in self.pauses)
        yield from (taken.at_ns for taken in self.rounds)


class _WholeFile(RecordReader):
    """A file that was read to its end: the incarnations of one rank, one after the other."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.name)
        self.incarnations: list[_Incarnation] = []
        try:
            with path.open("rb") as file:
                while data := file.read(CHUNK_BYTES):
                    self._sort_in(self.feed(data))
                self._sort_in(self.end())
        except OSError as error:
            self.note(f"cannot be read: {error.strerror}")

    def _sort_in(self, records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, Header):
                self.incarnations.append(_Incarnation(record))
            elif isinstance(record, (Step, TracedRound, Tally, Synchronized, Finished)):
                if not self.incarnations:
                    self.note("begins without a header, so it is read as if on another rank's clock")
                    self.incarnations.append(_Incarnation(None))
                self.incarnations[-1].add(record)


# -- one clock --------------------------------------------------------------------------------------------------------


def clocks_of(headers: Sequence[Header | None]) -> list[int]:
    """For each of them, what to add to its times to get wall-clock time.

    Ranks of one host have one monotonic clock, but each looked at the wall clock by itself: the first one's look counts
    for all. What has no header gets the first clock there is.
    """
    firsts: list[Header] = []
    for header in headers:
        if header is not None and not any(_is_same_host(header, first) for first in firsts):
            firsts.append(header)
    return [next((f.clock_ns for f in firsts if h is None or _is_same_host(h, f)), 0) for h in headers]


def _is_same_host(one: Header, other: Header) -> bool:
    """Whether their times are on one monotonic clock."""
    return one.host == other.host and abs(one.clock_ns - other.clock_ns) < SAME_CLOCK_NS


def newest_of(headers: Iterable[Header | None]) -> Header | None:
    """The header that speaks for the run."""
    return max((h for h in headers if h is not None), key=lambda header: header.unix_ns, default=None)


# -- a whole trace ----------------------------------------------------------------------------------------------------


def read_trace(path: str | Path) -> Trace:
    """The trace in a directory, or in one rank's file.

    Uses what can be read and says in `skipped` what was left out. Raises `TraceInvalid` if that is everything. Of a
    directory in which several runs wrote, the newest one is read.
    """
    files = [_WholeFile(file) for file in _files(Path(path))]
    newest = newest_of(file.header for file in files)
    ranks: dict[int, _WholeFile] = {}
    skipped: list[str] = []
    for file in files:
        why = _unusable(file, newest, ranks)
        skipped += file.in_words(why)
        if not why and file.rank is not None:
            ranks[file.rank] = file
    if not ranks:
        raise TraceInvalid(f"no trace can be read from {named(path)} ({'; '.join(skipped[:NAMED])}). {_ADVICE}")
    world = max([newest.world if newest else 0, *(rank + 1 for rank in ranks)])
    return _assembled(world, newest, dict(sorted(ranks.items())), [*skipped, *_missing(world, ranks)])


def _unusable(file: _WholeFile, newest: Header | None, taken: dict[int, _WholeFile]) -> str:
    if not any(incarnation.steps for incarnation in file.incarnations):
        return "it has no step, so this rank is left out"
    if file.rank is None or file.rank >= MOST_RANKS:
        return "neither a header nor its name says which rank it is of; left out"
    if file.header is not None and newest is not None and file.header.world != newest.world:
        return f"it is of another run, with {file.header.world} ranks instead of {newest.world}; left out"
    if file.rank in taken:
        return f"rank {file.rank} has another file; this one is left out"
    return ""


def _assembled(world: int, newest: Header | None, files: dict[int, _WholeFile], skipped: list[str]) -> Trace:
    """All on one clock, which begins with the first thing that happened."""
    clocks = iter(clocks_of([i.header for file in files.values() for i in file.incarnations]))
    timed = {rank: [(i, next(clocks)) for i in file.incarnations] for rank, file in files.items()}
    start = min(ns + clock for mine in timed.values() for i, clock in mine for ns in i.begins_ns())
    rounds, ranks = [], {}
    for rank, mine in timed.items():
        rounds += [replace(r.shifted(clock - start), recorded_by=rank) for i, clock in mine for r in i.rounds]
        steps = tuple(step.shifted(clock - start) for i, clock in mine for step in i.steps)
        pauses = tuple(pause.shifted(clock - start) for i, clock in mine for pause in i.pauses)
        last, _ = mine[-1]
        ranks[rank] = RankTrace(rank, last.header.host if last.header else "unknown", steps, pauses, last.tally)
    strategy, payload_bytes = (newest.strategy, newest.payload_bytes) if newest else ("unknown", 0)
    in_order = tuple(sorted(rounds, key=lambda taken: taken.at_ns))
    return Trace(world, strategy, payload_bytes, ranks, in_order, tuple(skipped))


def _missing(world: int, ranks: Iterable[int]) -> list[str]:
    missing = [str(rank) for rank in sorted(set(range(world)) - set(ranks))]
    return [f"no trace of rank {_some(missing)} of {world} can be read"] if missing else []


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


# -- places -----------------------------------------------------------------------------------------------------------


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
    inside = [printable(directory.name, 100) for directory in recordings(path)]
    if not inside:
        return f"there is no trace in {named(path)}: it has no rank-*.jsonl. {_ADVICE}"
    return f"there is no trace in {named(path)} itself, but in: {_some(inside)}. Give one of these"


def recordings(path: Path) -> list[Path]:
    """The directories in this one that have traces, in order of their names; none if it cannot be read."""
    try:
        return sorted({file.parent for file in path.glob("*/rank-*.jsonl") if file.is_file()})
    except OSError:
        return []


def named(path: str | Path) -> str:
    return f"'{printable(str(path), 300)}'"
