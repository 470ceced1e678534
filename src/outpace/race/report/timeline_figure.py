"""A timeline as a chart: a row for each rank, a bar for each span, an arrow for each contribution that was carried."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from outpace.race.report.layout import APPLY, ARROW, MUTED, WAIT, WAIT_LINE, Look, axis, figure
from outpace.race.report.timeline import Arrow, Window

ROW, MOST_HEIGHT = 25, 620


def timeline_figure(shown: Window, look: Look, seconds: float) -> dict[str, Any]:
    """The chart of one system; `seconds` is the length of the axis, which all systems share."""
    kinds = {"waiting": _waiting(), "computing": {"color": look.colour}, "applying": {"color": APPLY}}
    traces: list[Any] = [_spans(shown, kind, marker) for kind, marker in kinds.items()]
    traces += [_rounds(shown)] if shown.rounds else []
    traces += [_arrows(shown.arrows)] if shown.arrows else []
    count = max(shown.ranks) + 1
    ranks = axis(
        showgrid=False, range=[count - 0.4, -0.6], tickprefix="rank ", dtick=max(1, -(-count // 16)), ticks="", tick0=0
    )
    return figure(
        traces,
        min(MOST_HEIGHT, 60 + ROW * count),
        barmode="overlay",
        bargap=0.26,
        hovermode="closest",
        xaxis=axis("seconds, of the last rounds", range=[0, seconds], fixedrange=False),
        yaxis=ranks,
    )


def _waiting() -> dict[str, Any]:
    pattern = {"shape": "/", "fgcolor": WAIT_LINE, "bgcolor": WAIT, "size": 5, "solidity": 0.25, "fillmode": "replace"}
    return {"color": WAIT, "pattern": pattern}


def _spans(shown: Window, kind: str, marker: dict[str, Any]) -> go.Bar:
    spans = [span for span in shown.spans if span.kind == kind]
    return go.Bar(
        orientation="h",
        name=kind,
        y=[span.rank for span in spans],
        x=[round(span.end_s - span.begin_s, 6) for span in spans],
        base=[round(span.begin_s, 6) for span in spans],
        customdata=[[span.about, f"{(span.end_s - span.begin_s) * 1000:,.1f} ms"] for span in spans],
        marker={**marker, "line": {"width": 0}},
        hovertemplate="rank %{y}, %{customdata[0]}<br>" + kind + " %{customdata[1]}<extra></extra>",
    )


def _rounds(shown: Window) -> go.Scatter:
    """Faint upright lines: where a round was applied."""
    x: list[float | None] = []
    y: list[float | None] = []
    for at_s in shown.rounds:
        x += [round(at_s, 6), round(at_s, 6), None]
        y += [-0.5, max(shown.ranks) + 0.5, None]
    return go.Scatter(
        x=x, y=y, mode="lines", name="round", hoverinfo="skip", line={"color": MUTED, "width": 1, "dash": "dot"}
    )


def _arrows(arrows: tuple[Arrow, ...]) -> go.Scatter:
    x: list[float | None] = []
    y: list[float | None] = []
    sizes: list[int] = []
    words: list[str] = []
    for arrow in arrows:
        x += [round(arrow.from_s, 6), round(arrow.to_s, 6), None]
        y += [arrow.from_rank, arrow.to_rank, None]
        sizes += [0, 9, 0]
        words += [f"rank {arrow.from_rank}'s contribution went with round {arrow.round}, {arrow.late} late"] * 3
    return go.Scatter(
        x=x,
        y=y,
        name="carried",
        mode="lines+markers",
        customdata=words,
        line={"color": ARROW, "width": 1.6},
        marker={
            "symbol": "arrow",
            "angleref": "previous",
            "size": sizes,
            "color": ARROW,
            "opacity": 1,
            "line": {"width": 0},
        },
        hovertemplate="%{customdata}<extra></extra>",
    )
