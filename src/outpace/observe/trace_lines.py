"""The lines of a trace file. Owns the format: what is written of a step, a round, a synchronisation.

One JSON object a line. Times are nanoseconds of the host's monotonic clock; the header says what o'clock that was.
The training thread hands over one of these functions with its arguments, as a plain tuple, which costs it next to
nothing. The thread that writes calls it.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from outpace.interface import Ticket
from outpace.protocol.round import Round

FORMAT = 1  #: of the lines; grows when a reader of today would misunderstand them

Plain = dict[str, Any]
Line = tuple[Any, ...]  #: a function that returns Plain, and its arguments


class Header(NamedTuple):
    """Whose trace it is."""

    rank: int
    world: int
    strategy: str
    payload_bytes: int
    incarnation: int = 1


def header_line(header: Header) -> Plain:
    """The first line of a rank's life."""
    from outpace import __version__

    here = {"host": socket.gethostname(), "pid": os.getpid()}
    now = {"monotonic_ns": time.monotonic_ns(), "unix_s": time.time()}
    return {"outpace": __version__, "trace": FORMAT, **header._asdict(), **here, **now}


def step_line(
    step: int,
    begin: int,
    ready: int,
    end: int,
    waited_s: float,
    apply_s: float,
    loss: float | None = None,
    samples: float | None = None,
) -> Plain:
    """A step: when the one before had ended, when this rank's own gradients were there, and when it returned.

    Durations are in whole microseconds, to keep the line short.
    """
    times = {"step": step, "begin": begin, "ready": ready, "end": end}
    line = {**times, "waited_s": round(waited_s, 6), "apply_s": round(max(0.0, apply_s), 6)}
    told = {"loss": loss, "samples": samples}
    return line | {name: float(n) for name, n in told.items() if n is not None and math.isfinite(n)}  # JSON has no inf


def strategy_step_line(
    ticket: Ticket,
    begin: int,
    ready: int,
    end: int,
    waited_s: float,
    version: int,
    samples: float,
    loss: float | None = None,
) -> Plain:
    """A step of outpace's own. What it did not wait, it gave away its contribution and applied rounds."""
    line = step_line(ticket.step, begin, ready, end, waited_s, (end - ready) / 1e9 - waited_s, loss, samples)
    return line | {"round": ticket.round, "version": version, "late": max(0, ticket.round - version)}


def pausing_line(name: str, begin: int) -> Plain:
    """A rank takes no steps for now, to synchronise or to finish: who follows the run shall not take it for late."""
    return {"pausing": name, "begin": begin}


def sync_line(generation: int, begin: int, end: int) -> Plain:
    """A synchronisation: the how-manieth, and how long this rank was in it."""
    return {"sync": generation, "begin": begin, "end": end}


def round_line(record: Round, at: int) -> Plain:
    """A round: who is in it, with which step of theirs, computed at which version; and when it was applied here."""
    contributions = [[c.rank, c.step, c.version] for c in record.contributions]
    about = {"world": record.world, "contributions": contributions, "void": record.void}
    return {"round": record.number, "at": at, **about}


def tally_line(on_time: int, carried: int, dropped: int, staleness: Mapping[int, int]) -> Plain:
    """What became of this rank's contributions, at its end."""
    late = [[rounds, count] for rounds, count in sorted(staleness.items()) if count]
    return {"tally": late, "on_time": on_time, "carried": carried, "dropped": dropped}


def finished_line(now: int, began: int | None) -> Plain:
    """The last line of a recording that was ended properly; with when `finish()` was called, if it was."""
    return {"finished": now} if began is None else {"finished": now, "begin": began}


def lost_line(count: int) -> Plain:
    """Lines that a slow disk left no room for."""
    return {"lost": count}


def cut_line(reason: str) -> Plain:
    """The last line of a recording that ended before training did."""
    return {"cut": reason}


def to_bytes(line: Line) -> bytes:
    """The line as it stands in the file."""
    make, *arguments = line
    return json.dumps(make(*arguments), separators=(",", ":")).encode() + b"\n"
