"""A trace for the eye: the JSON that Perfetto and chrome://tracing show. Owns how a run is drawn.

A process is a host, a thread is a rank. Arrows lead from where a late contribution was computed to where the round
that took it in was applied.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outpace.errors import OutpaceError
from outpace.observe.trace import RankTrace, Step, Trace

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
        for name, begin_ns, end_ns in _spans(step):
            yield _span(name, begin_ns, end_ns, place, {"step": step.number})
        if step.round is not None and step.late != late:
            late = step.late
            yield _at(step.ready_ns, place, ph="C", name=f"rank {rank.rank} late by", args={"rounds": late})
    for pause in rank.pauses:
        yield _span(pause.name, pause.begin_ns, pause.end_ns, place, {})


def _spans(step: Step) -> Iterator[tuple[str, int, int]]:
    """A step's parts, one after the other, whatever their order in truth: waiting may be in several pieces."""
    waited = min(step.end_ns, step.ready_ns + round(step.waited_s * 1e9))
    applied = min(step.end_ns, waited + round(step.apply_s * 1e9))
    yield "computing", step.begin_ns, step.ready_ns
    yield "waiting", step.ready_ns, waited
    yield "applying", waited, applied


def _rounds(trace: Trace, places: dict[int, Event]) -> Iterator[Event]:
    steps = {(r.rank, s.number, s.version): s for r in trace.ranks.values() for s in r.steps}
    arrows = itertools.count(1)
    for taken in trace.rounds:
        place = places[taken.recorded_by]
        about = {"contributions": len(taken.contributions), "world": taken.world, "void": taken.void}
        yield _at(taken.at_ns, place, ph="i", s="t", name=f"round {taken.number}", args=about)
        for given in taken.contributions:
            step = steps.get(given)
            if given.version < taken.number and step is not None:
                arrow = {"cat": "late", "name": "late", "id": next(arrows)}
                yield _at(max(step.begin_ns, step.ready_ns - INSIDE_NS), places[given.rank], ph="s", **arrow)
                yield _at(taken.at_ns, place, ph="f", bp="e", **arrow)


def _span(name: str, begin_ns: int, end_ns: int, place: Event, about: Event) -> Event:
    return _at(begin_ns, place, ph="X", name=name, dur=(end_ns - begin_ns) / 1000, args=about)


def _at(ns: int, place: Event, **event: Any) -> Event:
    return {**event, "ts": ns / 1000, **place}
