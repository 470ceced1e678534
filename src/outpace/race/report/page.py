"""The page itself: one HTML file with everything in it, written whole or not at all. Owns its content."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from outpace.errors import OutpaceError, TraceInvalid
from outpace.observe.reader import read_trace
from outpace.observe.schema import Trace
from outpace.race.directory import load, write_whole
from outpace.race.report import charts, table, words
from outpace.race.report.layout import Look, looks
from outpace.race.report.table import counted
from outpace.race.report.timeline import length_s, timeline_figure, window
from outpace.race.report.words import target_text
from outpace.race.result import Attempt, Race

NAME = "report.html"

TraceOf = Callable[[Attempt], "Trace | None"]


def render(race: Race, trace_of: TraceOf) -> str:
    """The page, as text. Pure, given that `trace_of` is: the trace of an attempt, or None if it left none."""
    timelines = _timelines(race, trace_of)
    sentences = words.sentences(race)
    figures = {
        "metric": charts.metric_curves(race),
        "loss": charts.loss_curves(race),
        "target": charts.target_bars(race),
        "staleness": charts.staleness_bars(race),
        **{f"waiting {system}": chart for system, chart in charts.waiting_charts(race).items()},
        **{f"share {system}": chart for system, chart in charts.share_charts(race).items()},
        **{f"timeline {system}": chart for system, chart in timelines.items()},
    }
    page: str = _template().render(
        race=race,
        headline=sentences[0],
        story=sentences[1:],
        tiles=words.headline_figures(race),
        columns=table.columns(race),
        rows=table.rows(race),
        systems=_systems(race),
        timelines=_choice(race, timelines),
        figures={name: figure for name, figure in figures.items() if figure is not None},
        never_late=[entry.title for entry in race.finished if entry.late_share == 0],
        ranks=counted(race.settings.ranks, "rank"),
        target=target_text(race),
        measured=words.measured(race),
        date=words.date(race),
        facts=words.facts(race),
        notes=words.notes(race),
        css=Markup(_resource("page.css")),
        script=Markup(_resource("page.js")),
        plotly=Markup(_resource("plotly-basic.min.js")),
    )
    return page


def write(run_dir: str | Path) -> Path:
    """Writes report.html into a run's directory and returns its path. What was there stays until the new one is whole.

    Blocks for a second or so. Raises what reading the race raises, and `OutpaceError` if the file cannot be written.
    """
    directory = Path(run_dir)

    def trace_of(attempt: Attempt) -> Trace | None:
        try:
            return read_trace(directory / attempt.directory)
        except TraceInvalid:
            return None

    path, text = directory / NAME, render(load(directory), trace_of)
    try:
        write_whole(path, text)
    except OSError as error:
        raise OutpaceError(
            f"the report cannot be written to {path}: {error.strerror}. The race itself is kept; make room or give the "
            "directory write permission, then ask for the report again"
        ) from error
    return path


@dataclass(frozen=True)
class Shown:
    system: str
    title: str
    look: Look


def _systems(race: Race) -> list[Shown]:
    return [Shown(e.system, e.title, looks(race)[e.system]) for e in table.ranked(race) if e.finished]


def _timelines(race: Race, trace_of: TraceOf) -> dict[str, dict[str, Any]]:
    """By system, of its first attempt that left a trace; all over the same length of time, so that they compare."""
    found: dict[str, Trace] = {}
    for entry in table.ranked(race):
        traces = (trace_of(attempt) for attempt in entry.finished)
        trace = next((trace for trace in traces if trace is not None and trace.ranks), None)
        if trace is not None:
            found[entry.system] = trace
    seconds = min(map(length_s, found.values()), default=0.0)
    return {s: timeline_figure(window(trace, seconds), looks(race)[s], seconds) for s, trace in found.items()}


@dataclass(frozen=True)
class Choice:
    """Which timelines there are: the baseline's is always in view, one of the others below it."""

    fixed: Shown | None
    others: list[Shown]
    without: list[str]  #: systems that left no trace


def _choice(race: Race, timelines: dict[str, Any]) -> Choice:
    shown = [system for system in _systems(race) if system.system in timelines]
    base = race.baseline.system if race.baseline else None
    fixed = next((system for system in shown if system.system == base), None)
    without = [entry.title for entry in race.finished if entry.system not in timelines]
    return Choice(fixed, [system for system in shown if system is not fixed], without)


def _template() -> Any:
    loader = PackageLoader("outpace.race.report", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters["breakable"] = _breakable
    return environment.get_template("page.html.j2")


def _breakable(text: str) -> Markup:
    """Long names of strategies may go into several lines, at their punctuation; a number and its unit may not."""
    broken = re.sub(r"([:,=])(?=\w)", r"\1<wbr>", str(escape(text)))
    return Markup(re.sub(r"(?<=\d) (?=(?:s|ms|min)\b)", "&nbsp;", broken))


def _resource(name: str) -> str:
    return resources.files("outpace.race.report").joinpath(name).read_text(encoding="utf-8")
