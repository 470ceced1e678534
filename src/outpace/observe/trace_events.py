"""One line of a trace file as a value. Owns which kinds of lines there are, for all who read them.

Never believes a line: what it cannot be is `Nonsense`.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from outpace.observe.trace import Pause, Step, Tally, TracedRound
from outpace.observe.trace_life import Life
from outpace.observe.trace_lines import FORMAT, Plain
from outpace.observe.trace_values import Nonsense, pause_of, round_of, step_of, tally_of, text, whole

LINE_BYTES = 1_000_000  #: a longer line is none of ours


class Foreign(NamedTuple):
    """The header of a format that this version does not read; so are the lines after it."""

    format: int


class Pausing(NamedTuple):
    """A rank has stopped to take steps; a `Pause` or `Finished` says when it was over."""

    name: str
    begin_ns: int


class Finished(NamedTuple):
    """The last line of a recording that was ended properly."""

    at_ns: int
    pause: Pause | None  #: the time in `finish()`, if it was called


class Lost(NamedTuple):
    """Lines that a slow disk left no room for."""

    lines: int


class Cut(NamedTuple):
    """The recording ended before training did."""

    reason: str


Event = Life | Foreign | Step | Pause | Pausing | TracedRound | Tally | Finished | Lost | Cut


def event_of(line: bytes | None, rank: int) -> Event:
    """What a line of that rank's file says; None is a line that was too long to be read. Raises `Nonsense`."""
    plain = _parsed(line)
    for name, make in _KINDS.items():
        if name in plain:
            return make(plain, rank)
    raise Nonsense("is of a kind this version of outpace does not know")


def _parsed(line: bytes | None) -> Plain:
    if line is None:
        raise Nonsense("is too long")
    try:
        plain = json.loads(line.decode())
    except (ValueError, RecursionError):
        raise Nonsense("is not JSON (cut in the middle?)") from None
    if not isinstance(plain, dict):
        raise Nonsense("is not a JSON object")
    return plain


def _header(line: Plain, _: int) -> Life | Foreign:
    written_in = whole(line, "trace")
    return Life(line) if written_in == FORMAT else Foreign(written_in)


def _step(line: Plain, _: int) -> Step:
    return step_of(line)


def _pausing(line: Plain, _: int) -> Pausing:
    return Pausing(text(line, "pausing"), whole(line, "begin"))


def _sync(line: Plain, _: int) -> Pause:
    return pause_of(line, "synchronize", "begin", "end")


def _tally(line: Plain, _: int) -> Tally:
    return tally_of(line)


def _finished(line: Plain, _: int) -> Finished:
    pause = pause_of(line, "finish", "begin", "finished") if "begin" in line else None
    return Finished(whole(line, "finished"), pause)


def _lost(line: Plain, _: int) -> Lost:
    return Lost(whole(line, "lost"))


def _cut(line: Plain, _: int) -> Cut:
    return Cut(text(line, "cut"))


#: A step also names its round, so the order decides.
_KINDS = {
    "trace": _header,
    "step": _step,
    "sync": _sync,
    "pausing": _pausing,
    "round": round_of,
    "tally": _tally,
    "finished": _finished,
    "lost": _lost,
    "cut": _cut,
}
