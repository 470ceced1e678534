"""The summary table, as texts. Owns its columns and what they mean; the template only sets it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from outpace.race.report.colours import Look, looks
from outpace.race.report.measures import (
    dropped_share,
    final,
    is_worse,
    slowest_share,
    speedup,
    target_times,
    to_target,
    waited_share,
)
from outpace.race.report.numbers import NONE, Spread, percent, seconds, spread, times
from outpace.race.result import Entry, Race


@dataclass(frozen=True)
class Cell:
    """A figure, and how far attempts lie apart."""

    text: str
    spread: str = ""
    tone: str = ""  #: "good", "bad" or nothing


@dataclass(frozen=True)
class Row:
    """A system: its cells, or why it has none."""

    title: str
    look: Look
    tags: tuple[str, ...]
    cells: tuple[Cell, ...] = ()
    problem: str = ""
    is_winner: bool = False


def columns(race: Race) -> tuple[str, ...]:
    """Their heads."""
    to = f"to {race.metric.text(race.target)}" if race.target is not None else "to target"
    return ("time", "speed-up", to, f"final {race.metric.name}", "waited", "late", "stalest", "slowest's share")


def rows(race: Race) -> list[Row]:
    """The first at the target on top, then the fastest; those without a result below."""
    return [_row(race, entry) for entry in ranked(race)]


def ranked(race: Race) -> list[Entry]:
    """All entries, the best first."""

    def place(entry: Entry) -> tuple[bool, float, float]:
        if not entry.finished:
            return (True, 0.0, 0.0)
        reached = race.seconds_to_target(entry)
        return (False, math.inf if reached is None else reached, -entry.mean(lambda attempt: attempt.samples_per_s))

    return sorted(race.entries, key=place)


def _row(race: Race, entry: Entry) -> Row:
    look = looks(race)[entry.system]
    if not entry.finished:
        problem = f"failed: {entry.error}" if entry.error is not None else "did not run"
        return Row(entry.title, look, (), problem=problem)
    is_winner = entry is race.winner and len(race.finished) > 1
    return Row(entry.title, look, _tags(race, entry), _cells(race, entry), is_winner=is_winner)


def _tags(race: Race, entry: Entry) -> tuple[str, ...]:
    tags = ["baseline"] if entry is race.baseline else []
    if len(entry.attempts) > 1:
        lost = len(entry.attempts) - len(entry.finished)
        tags.append(f"{len(entry.attempts)} runs" + (f", {lost} failed" if lost else ""))
    return tuple(tags)


def _cells(race: Race, entry: Entry) -> tuple[Cell, ...]:
    gain, waited, share = speedup(race, entry), waited_share(entry), slowest_share(entry)
    return (
        _cell(spread([attempt.seconds for attempt in entry.finished]), seconds),
        Cell(NONE if gain is None else times(gain), tone=_tone(race, entry, gain)),
        _target_cell(race, entry),
        _final_cell(race, entry),
        _cell(waited, percent),
        _late_cell(entry),
        Cell(str(max(entry.staleness, default=0))),
        _cell(share, lambda value: f"{value:.1%}"),
    )


def _cell(found: Spread | None, text: Callable[[float], str], tone: str = "") -> Cell:
    if found is None:
        return Cell(NONE)
    low, high = text(found.low), text(found.high)
    apart = f"{low} to {high}" if low != high else ""
    return Cell(text(found.mean), apart, tone)


def _tone(race: Race, entry: Entry, gain: float | None) -> str:
    if gain is None or entry is race.baseline:
        return ""
    return "good" if gain > 1.02 else "bad" if gain < 0.98 else ""


def _target_cell(race: Race, entry: Entry) -> Cell:
    if race.target is None:
        return Cell(NONE)
    reached = target_times(race, entry)
    if len(reached) == len(entry.finished):
        return _cell(to_target(race, entry), seconds)
    apart = f"{len(reached)} of {len(entry.finished)} did" if reached else ""
    return Cell("not reached", apart, "bad")


def _final_cell(race: Race, entry: Entry) -> Cell:
    found = final(entry)
    if found is not None and not math.isfinite(found.mean):
        return Cell("diverged", tone="bad")
    worse = race.baseline is not None and is_worse(race, entry, race.baseline)
    return _cell(found, race.metric.text, "bad" if worse else "")


def _late_cell(entry: Entry) -> Cell:
    dropped = dropped_share(entry)
    return Cell(percent(entry.late_share), f"{percent(dropped)} dropped" if dropped else "")
