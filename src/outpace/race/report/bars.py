"""Two charts with a bar for each system: the time to the target, and how late contributions came."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from outpace.race.report.colours import INK, SURFACE, Look, looks
from outpace.race.report.layout import axis, figure, label, wrapped
from outpace.race.report.measures import to_target
from outpace.race.report.numbers import seconds, times
from outpace.race.report.table import ranked
from outpace.race.result import Entry, Race

LINE = 17  #: pixels of a line of a name beside its bar
MOST_BINS = 8  #: contributions that were later than this are counted together


def target_bars(race: Race) -> dict[str, Any] | None:
    """Seconds to the target, the fastest on top; None without a target that somebody reached."""
    if not any(to_target(race, entry) for entry in race.finished):
        return None
    order = [entry for entry in reversed(ranked(race)) if entry.finished]
    longest = max(found.high for entry in order if (found := to_target(race, entry)))
    names: dict[str, Any] = {"tickvals": list(range(len(order))), "ticktext": [wrapped(entry.title) for entry in order]}
    row = max(44, 10 + LINE * max(1 + name.count("<br>") for name in names["ticktext"]))
    traces = [_target_bar(race, entry, looks(race)[entry.system], place) for place, entry in enumerate(order)]
    return figure(
        traces,
        70 + row * len(order),
        xaxis=axis("seconds", range=[0, longest * 1.06 or 1], fixedrange=True),
        yaxis=axis(**names, showgrid=False, tickfont={"color": INK, "size": 13}, ticklabelstandoff=6),
        bargap=0.35,
        barmode="overlay",
    )


def _target_bar(race: Race, entry: Entry, look: Look, place: int) -> go.Bar:
    reached = to_target(race, entry)
    several = reached is not None and reached.attempts > 1
    error = [reached.high - reached.mean] if reached and several else [0]
    below = [reached.mean - reached.low] if reached and several else [0]
    return go.Bar(
        orientation="h",
        x=[reached.mean if reached else 0],
        y=[place],
        name=label(entry.title),
        meta=entry.system,
        text=[_target_text(race, entry)],
        textposition="auto" if reached else "outside",  # within the bar if it fits: on a phone nothing fits beside it
        insidetextanchor="start",
        constraintext="none",
        textangle=0,
        cliponaxis=False,
        marker=_marker(look),
        error_x={"array": error, "arrayminus": below, "visible": several, "color": INK, "thickness": 1.2, "width": 4},
        outsidetextfont={"color": INK},
        hoverinfo="skip",
    )


def _target_text(race: Race, entry: Entry) -> str:
    reached = to_target(race, entry)
    if reached is None:
        return " not reached"
    base = to_target(race, race.baseline) if race.baseline else None
    gain = f" · {times(base.mean / reached.mean)}" if base and entry is not race.baseline and reached.mean else ""
    return f" {seconds(reached.mean)}{gain} "


def staleness_bars(race: Race) -> dict[str, Any] | None:
    """Share of the contributions that came one, two ... rounds late; None if none did."""
    late = [entry for entry in race.finished if entry.late_share > 0]
    if not late:
        return None
    most = min(MOST_BINS, max(max(entry.staleness) for entry in late))
    cut = any(max(entry.staleness) > MOST_BINS for entry in late)
    bins = [str(age) for age in range(1, most)] + [f"{most}+" if cut else str(most)]
    traces = [_ages(entry, bins, looks(race)[entry.system]) for entry in late]
    return figure(
        traces,
        300,
        xaxis=axis("rounds late", type="category", showgrid=False),
        yaxis=axis(tickformat=".0%", rangemode="tozero"),
        barmode="group",
        bargap=0.3,
        bargroupgap=0.08,
    )


def _ages(entry: Entry, bins: list[str], look: Look) -> go.Bar:
    total = sum(entry.staleness.values())
    counts = [0] * len(bins)
    for age, count in entry.staleness.items():
        if age > 0:
            counts[min(age, len(bins)) - 1] += count
    return go.Bar(
        x=bins,
        y=[count / total for count in counts],
        name=label(entry.title),
        meta=entry.system,
        marker=_marker(look),
        hovertemplate="%{y:.1%} of its contributions",
    )


def _marker(look: Look) -> dict[str, Any]:
    pattern = {"shape": look.pattern, "fillmode": "overlay", "fgcolor": SURFACE, "solidity": 0.25, "size": 6}
    return {"color": look.colour, "cornerradius": 3, "line": {"width": 0}, "pattern": pattern}
