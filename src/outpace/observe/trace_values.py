"""Values out of files that nobody vouches for. Owns what is believed of a line; everything else is `Nonsense`."""

from __future__ import annotations

from typing import Any

from outpace.observe.trace import Given, Pause, Step, Tally, TracedRound
from outpace.observe.trace_lines import Plain

MOST = 2**62  #: the largest whole number: nanoseconds of 146 years
MOST_RANKS = 2**20
LONGEST_NS = 30 * 24 * 3600 * 10**9  #: the longest step: a month
MOST_LOSS = 1e300
ROUNDING_S = 1e-5  #: durations were rounded when they were written


class Nonsense(ValueError):
    """A line that cannot be. Its message goes on where "line 12" ends."""


def step_of(line: Plain) -> Step:
    """The step on this line."""
    begin, ready, end = (whole(line, name) for name in ("begin", "ready", "end"))
    if not begin <= ready <= end or end - begin > LONGEST_NS:
        raise Nonsense(f"goes from begin={begin} over ready={ready} to end={end}")
    rest_s = (end - ready) / 1e9
    waited = number(line, "waited_s", most=rest_s + ROUNDING_S)
    applied = number(line, "apply_s", most=rest_s + ROUNDING_S) if "apply_s" in line else max(0.0, rest_s - waited)
    return Step(
        whole(line, "step"),
        begin,
        ready,
        end,
        waited,
        applied,
        late=whole(line, "late") if "late" in line else 0,
        round=whole(line, "round") if "round" in line else None,
        version=whole(line, "version") if "version" in line else None,
        samples=number(line, "samples") if "samples" in line else None,
        loss=number(line, "loss", MOST_LOSS, -MOST_LOSS) if "loss" in line else None,
    )


def pause_of(line: Plain, name: str, begin: str, end: str) -> Pause:
    """The pause between these two times."""
    pause = Pause(name, whole(line, begin), whole(line, end))
    if not 0 <= pause.end_ns - pause.begin_ns <= LONGEST_NS:
        raise Nonsense(f"goes from {begin}={pause.begin_ns} to {end}={pause.end_ns}")
    return pause


def round_of(line: Plain, rank: int) -> TracedRound:
    """The round on this line of that rank's file."""
    rows, void = line.get("contributions"), line.get("void")
    if not isinstance(rows, list) or not isinstance(void, bool):
        raise Nonsense(f"has contributions={shown(rows)} and void={shown(void)}")
    given = tuple(_given(row) for row in rows)
    world = whole(line, "world", least=1, most=MOST_RANKS)
    return TracedRound(whole(line, "round"), whole(line, "at"), world, given, void, rank)


def tally_of(line: Plain) -> Tally:
    """The tally on this line."""
    rows = line.get("tally")
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 2 for row in rows):
        raise Nonsense(f"has tally={shown(rows)}")
    pairs = [dict(zip(("late", "count"), row, strict=True)) for row in rows]
    on_time, carried, dropped = (whole(line, name) for name in ("on_time", "carried", "dropped"))
    return Tally(on_time, carried, dropped, {whole(pair, "late"): whole(pair, "count") for pair in pairs})


def _given(row: Any) -> Given:
    if not isinstance(row, list) or len(row) != 3:
        raise Nonsense(f"has {shown(row)} among its contributions")
    plain = dict(zip(Given._fields, row, strict=True))
    return Given(whole(plain, "rank", most=MOST_RANKS), whole(plain, "step"), whole(plain, "version"))


def whole(line: Plain, name: str, least: int = 0, most: int = MOST) -> int:
    """A whole number in these bounds."""
    value = line.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _refused(line, name)
    return value


def number(line: Plain, name: str, most: float = 1e12, least: float = 0.0) -> float:
    """A finite number in these bounds."""
    value = line.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        raise _refused(line, name)
    return float(value)


def text(line: Plain, name: str) -> str:
    """A short text that can be printed."""
    value = line.get(name)
    if not isinstance(value, str):
        raise _refused(line, name)
    return printable(value, 200)


def _refused(line: Plain, name: str) -> Nonsense:
    return Nonsense(f"has {name}={shown(line[name])}" if name in line else f"has no {name}")


def shown(value: object) -> str:
    """A value in a message: short, and without control characters."""
    return printable(repr(value), 40)


def printable(given: str, most: int) -> str:
    """The text with everything escaped that a terminal might take for an order."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in given[:most])
    return safe if len(given) <= most else f"{safe}..."
