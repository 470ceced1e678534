"""The figures of a race as texts, and the summary table. Owns rounding and units: table, charts and sentences agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from outpace.race.report.layout import Look, looks
from outpace.race.result import Attempt, Entry, Race

NONE = "–"  # noqa: RUF001 - a dash as it is printed: there is no such figure


class Spread(NamedTuple):
    mean: float
    low: float
    high: float
    attempts: int


def spread(values: Sequence[float]) -> Spread | None:
    """Mean, smallest and largest; None without values."""
    return Spread(fmean(values), min(values), max(values), len(values)) if values else None


def seconds(value: float) -> str:
    """Three digits, and minutes where there are many.

    >>> [seconds(value) for value in (0.0421, 3.456, 14.23, 312.0)]
    ['42.1 ms', '3.46 s', '14.2 s', '5 min 12 s']
    """
    if not math.isfinite(value):
        return NONE
    if value < 0.9995:
        return f"{value * 1000:.3g} ms"
    if value < 119.5:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s"


def percent(share: float) -> str:
    """Whole percents; a share that rounds to zero is not shown as zero.

    >>> percent(0.483), percent(0.002), percent(0.0)
    ('48%', '<1%', '0%')
    """
    if not math.isfinite(share):
        return NONE
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def times(ratio: float) -> str:
    """A speed-up.

    >>> times(1.9583)
    '1.96x'
    """
    return f"{ratio:.2f}x" if math.isfinite(ratio) else NONE


def counted(count: int, noun: str) -> str:
    """With the plural where needed.

    >>> counted(1, "rank"), counted(8, "rank")
    ('1 rank', '8 ranks')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(names: Sequence[str]) -> str:
    """Names joined as in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def waited_share(entry: Entry) -> Spread | None:
    """Share of their time that ranks waited, in the mean over ranks."""
    return spread([_waited(attempt) for attempt in entry.finished if attempt.ranks])


def _waited(attempt: Attempt) -> float:
    return fmean(rank.waited_s / rank.seconds if rank.seconds else 0.0 for rank in attempt.ranks)


def slowest_share(entry: Entry) -> Spread | None:
    """How much of what was applied came from the slowest rank."""
    return spread([attempt.slowest.share for attempt in entry.finished if attempt.ranks])


def dropped_share(entry: Entry) -> float:
    """Share of all contributions that were thrown away."""
    ranks = [rank for attempt in entry.finished for rank in attempt.ranks]
    dropped = sum(rank.dropped for rank in ranks)
    total = dropped + sum(rank.on_time + rank.carried for rank in ranks)
    return dropped / total if total else 0.0


def to_target(race: Race, entry: Entry) -> Spread | None:
    """The time to the target; None unless every attempt reached it."""
    reached = race.target_times(entry)
    return spread(reached) if len(reached) == len(entry.finished) else None


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
    to = f"to {race.metric.text(race.target)}" if race.target is not None else "to target"
    rate = ("learning rate",) if race.settings.tune else ()
    return (race.metric.name, to, *rate, "time", "speed-up", "waited", "late", "stalest", "slowest's share")


def rows(race: Race) -> list[Row]:
    """Who learned as much as the baseline on top, the first at the target before the others; then the rest."""
    return [_row(race, entry) for entry in ranked(race)]


def ranked(race: Race) -> list[Entry]:
    """All entries, the best first."""

    def place(entry: Entry) -> tuple[bool, bool, float, float]:
        if not entry.finished:
            return (True, True, 0.0, 0.0)
        reached = race.seconds_to_target(entry)
        return (False, race.learned_less(entry), math.inf if reached is None else reached, -entry.samples_per_s)

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
    gain, dropped = race.speedup(entry), dropped_share(entry)
    return (
        _metric_cell(race, entry),
        _target_cell(race, entry),
        *((Cell(f"{entry.learning_rate:g} x", _tried(race, entry)),) if race.settings.tune else ()),
        _cell(spread([attempt.seconds for attempt in entry.finished]), seconds),
        Cell(NONE if gain is None else times(gain), tone=_tone(race, entry, gain)),
        _cell(waited_share(entry), percent),
        Cell(percent(entry.late_share), f"{percent(dropped)} dropped" if dropped else ""),
        Cell(str(max(entry.staleness, default=0))),
        _cell(slowest_share(entry), lambda value: f"{value:.1%}"),
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
    reached = race.target_times(entry)
    if len(reached) == len(entry.finished):
        return _cell(to_target(race, entry), seconds)
    apart = f"{len(reached)} of {len(entry.finished)} did" if reached else ""
    return Cell("not reached", apart, "bad")


def _metric_cell(race: Race, entry: Entry) -> Cell:
    found = spread(race.metrics_of(entry))
    if found is not None and not math.isfinite(found.mean):
        return Cell("diverged", tone="bad")
    return _cell(found, race.metric.text, "bad" if race.learned_less(entry) else "")


def _tried(race: Race, entry: Entry) -> str:
    """What each learning rate led to when it was tuned."""
    return ", ".join(f"{factor:g}: {race.metric.text(metric)}" for factor, metric in entry.tried)
