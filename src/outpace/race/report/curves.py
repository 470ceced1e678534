"""How good the models were against time. Owns the charts of curves; each attempt is a line in its system's colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import plotly.graph_objects as go

from outpace.race.report.colours import INK, Look, looks
from outpace.race.report.layout import axis, figure, label, thinned
from outpace.race.result import Attempt, Entry, Losses, Point, Race

HEIGHT = 340
BEGINNING = 0.12  #: of all points may lie below what is shown, so that the differences at the end are seen
DECADES = 8  #: a loss that falls by more than this factor is drawn on a logarithmic axis


def metric_curves(race: Race) -> dict[str, Any] | None:
    """The held-out metric against wall time, with the target; None if nothing was measured."""
    traces = [_curve(race, entry, attempt, look, _metric) for entry, attempt, look in _attempts(race) if attempt.curve]
    if not traces:
        return None
    if race.metric.name == "loss":
        traces = [*_training(race), *traces]
    scale = _share_axis(race) if race.metric.is_share else _scale(traces)
    target = {} if race.target is None else _target(race, race.target, scale.get("type") == "log")
    return figure(traces, HEIGHT, **_axes(), **target, yaxis=axis(**scale, fixedrange=False))


def loss_curves(race: Race) -> dict[str, Any] | None:
    """The held-out loss against wall time, and that of training faintly; None if the metric is this loss already."""
    traces = [_curve(race, entry, attempt, look, _loss) for entry, attempt, look in _attempts(race) if attempt.curve]
    traces = [*_training(race), *traces]
    if race.metric.name.endswith("loss") or not traces:
        return None
    return figure(traces, HEIGHT, **_axes(), yaxis=axis(**_scale(traces), fixedrange=False))


def _attempts(race: Race) -> Iterator[tuple[Entry, Attempt, Look]]:
    """The winner's lie on top of the others, the baseline's below."""
    order = {entry.system: 2 * (entry is race.winner) - (entry is race.baseline) for entry in race.finished}
    for entry in sorted(race.finished, key=lambda entry: order[entry.system]):
        for attempt in entry.finished:
            yield entry, attempt, looks(race)[entry.system]


def _metric(point: Point) -> float:
    return point.metric


def _loss(point: Point) -> float:
    return point.loss


def _curve(race: Race, entry: Entry, attempt: Attempt, look: Look, value: Callable[[Point], float]) -> go.Scatter:
    several = len(entry.finished) > 1
    width = 1.3 if several else 2.6 if entry is race.winner else 2.0
    number = "%{y:.1%}" if race.metric.is_share and value is _metric else "%{y:.4g}"
    points = [point for point in thinned(list(attempt.curve)) if math.isfinite(value(point))]
    return go.Scatter(
        x=[round(point.seconds, 4) for point in points],
        y=[value(point) for point in points],
        name=label(entry.title) + (f", seed {attempt.seed}" if several else ""),
        meta=entry.system,
        mode="lines+markers" if len(points) < 3 else "lines",
        line={"color": look.colour, "width": width, "dash": look.dash},
        hovertemplate=f"{number} at %{{x:.1f}} s",
    )


def _training(race: Race) -> list[go.Scatter]:
    return [_faint(entry, attempt.losses, look) for entry, attempt, look in _attempts(race) if attempt.losses]


def _faint(entry: Entry, losses: Sequence[Losses], look: Look) -> go.Scatter:
    """While it trained: noisy, so thin and without a word of its own."""
    points = [point for point in thinned(list(losses)) if math.isfinite(point.loss)]
    return go.Scatter(
        x=[round(point.seconds, 4) for point in points],
        y=[point.loss for point in points],
        name=label(entry.title),
        meta=entry.system,
        mode="lines",
        opacity=0.3,
        line={"color": look.colour, "width": 1},
        hoverinfo="skip",
    )


def _axes() -> dict[str, Any]:
    seconds = axis("seconds of training", rangemode="tozero", fixedrange=False)
    return {"xaxis": seconds, "hovermode": "closest"}


def _share_axis(race: Race) -> dict[str, Any]:
    """Percentages, from where the curves begin to be of interest."""
    values = [point.metric for entry in race.finished for attempt in entry.finished for point in attempt.curve]
    finite = sorted(value for value in values if math.isfinite(value)) or [0.0, 1.0]
    low, high = finite[int(BEGINNING * len(finite))], max(finite[-1], race.target or 0.0)
    room = max(0.01, 0.08 * (high - low))
    return {"tickformat": ".0%" if high - low > 0.05 else ".1%", "range": [max(0.0, low - room), min(1.0, high + room)]}


def _scale(traces: Sequence[go.Scatter]) -> dict[str, Any]:
    values = [value for trace in traces for value in trace.y]
    if values and min(values) > 0 and max(values) / min(values) > DECADES:
        return {"type": "log", **_ticks(min(values), max(values))}
    return {"rangemode": "tozero"}


def _ticks(low: float, high: float) -> dict[str, Any]:
    """Plain numbers on a logarithmic axis, where plotly would write small digits between powers."""
    digits = (1, 2, 5) if high / low < 1000 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [digit * 10.0**power for power in powers for digit in digits]
    shown = [mark for mark in marks if low * 0.8 <= mark <= high * 1.25]
    return {"tickvals": shown, "ticktext": [f"{mark:g}" for mark in shown]}


def _target(race: Race, target: float, is_log: bool) -> dict[str, Any]:
    """A line, and its name at the left, where curves are still far from it."""
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target}
    word = {
        "xref": "paper",
        "x": 0.01,
        "xanchor": "left",
        "y": math.log10(target) if is_log and target > 0 else target,
        "yanchor": "bottom" if race.metric.higher_is_better else "top",
        "showarrow": False,
        "text": f"target {race.metric.text(target)}",
        "font": {"size": 12, "color": INK},
    }
    return {"shapes": [{**line, "line": {"color": INK, "width": 1, "dash": "dot"}}], "annotations": [word]}
