"""A trace as a timeline: the JSON that Perfetto and chrome://tracing show.

A process is a host, a thread is a rank. Arrows lead from where a late contribution was computed to where the round that
included it was applied.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outpace.errors import OutpaceError
from outpace.observe.figures import carried, spans
from outpace.observe.schema import RankTrace, Trace

Event = dict[str, Any]

INSIDE_NS = 1000  #: an arrow begins so long before its span ends, so that viewers tie it to that span


def to_chrome(trace: Trace) -> dict[str, Any]:
    """The whole trace as one document in the Trace Event Format."""
    return {"traceEvents": list(events(trace)), "displayTimeUnit": "ms"}


def write_chrome(trace: Trace, path: str | Path) -> None:
    """Writes that document, an event a line. Raises `OutpaceError` if the file cannot be written."""
    try:
        with Path(path).open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            for index, event in enumerate(events(trace)):
                file.write((",\n" if index else "") + json.dumps(event, separators=(",", ":")))
            file.write("\n]}\n")
    except OSError as error:
        raise OutpaceError(f"the export cannot be written to {path}: {error.strerror}. Give another file") from error


def events(trace: Trace) -> Iterator[Event]:
    """Everything that is drawn. Times are microseconds since the trace began."""
    hosts = sorted({rank.host for rank in trace.ranks.values()})
    for pid, host in enumerate(hosts):
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": host}}
    places = {rank.rank: {"pid": hosts.index(rank.host), "tid": rank.rank} for rank in trace.ranks.values()}
    for rank in trace.ranks.values():
        yield from _rank(rank, places[rank.rank])
    yield from _rounds(trace, places)


def _rank(rank: RankTrace, place: Event) -> Iterator[Event]:
    yield {"ph": "M", "name": "thread_name", **place, "args": {"name": f"rank {rank.rank}"}}
    yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": rank.rank}}
    late: int | None = None
    for step in rank.steps:
        for name, begin_ns, end_ns in spans(step):
            yield _span(name, begin_ns, end_ns, place, {"step": step.number})
        if step.round is not None and step.late != late:
            late = step.late
            yield _at(step.ready_ns, place, ph="C", name=f"rank {rank.rank} late by", args={"rounds": late})
    for pause in rank.pauses:
        yield _span(pause.name, pause.begin_ns, pause.end_ns, place, {})


def _rounds(trace: Trace, places: dict[int, Event]) -> Iterator[Event]:
    for taken in trace.rounds:
        about = {"contributions": len(taken.contributions), "world": taken.world, "void": taken.void}
        yield _at(taken.at_ns, places[taken.recorded_by], ph="i", s="t", name=f"round {taken.number}", args=about)
    for number, late in enumerate(carried(trace), 1):
        arrow = {"cat": "late", "name": "late", "id": number}
        begin_ns = max(late.step.begin_ns, late.step.ready_ns - INSIDE_NS)
        yield _at(begin_ns, places[late.rank], ph="s", **arrow)
        yield _at(late.round.at_ns, places[late.round.recorded_by], ph="f", bp="e", **arrow)


def _span(name: str, begin_ns: int, end_ns: int, place: Event, about: Event) -> Event:
    return _at(begin_ns, place, ph="X", name=name, dur=(end_ns - begin_ns) / 1000, args=about)


def _at(ns: int, place: Event, **event: Any) -> Event:
    return {**event, "ts": ns / 1000, **place}
