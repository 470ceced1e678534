"""The charts of a race: bars for each system, curves against time, and small charts with a bar for each rank.

All small charts of a kind have one scale, to compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any

from outpace.race.report.layout import (
    APPLY,
    INK,
    SURFACE,
    Chart,
    Look,
    axis,
    bars,
    figure,
    hatched,
    label,
    lines,
    looks,
    thinned,
    wrapped,
)
from outpace.race.report.table import ranked, seconds, times, to_target
from outpace.race.result import Attempt, Entry, Losses, Point, Race, RankResult

LINE = 17  #: pixels of a line of a name beside its bar
HEIGHT = 340
BEGINNING = 0.12  #: of all points may lie below what is shown, so that the differences at the end are seen
DECADES = 8  #: a loss that falls by more than this factor is drawn on a logarithmic axis
SMALL_HEIGHT = 190
MOST_RANKS = 128  #: bars that a small chart can hold
MOST_BINS = 8  #: contributions that were later than this are counted together
Part = tuple[str, Callable[[RankResult], float], dict[str, Any]]


def target_bars(race: Race) -> dict[str, Any] | None:
    """Seconds to the target, the fastest on top; None without a target that somebody reached."""
    if not any(to_target(race, entry) for entry in race.finished):
        return None
    order = [entry for entry in reversed(ranked(race)) if entry.finished]
    longest = max(found.high for entry in order if (found := to_target(race, entry)))
    names: dict[str, Any] = {"tickvals": list(range(len(order))), "ticktext": [wrapped(entry.title) for entry in order]}
    row = max(44, 10 + LINE * max(1 + name.count("<br>") for name in names["ticktext"]))
    traces = [_target_bar(race, entry, looks(race)[entry.system], place) for place, entry in enumerate(order)]
    time = axis("seconds", range=[0, longest * 1.06 or 1], fixedrange=True)
    systems = axis(**names, showgrid=False, tickfont={"color": INK, "size": 13}, ticklabelstandoff=6)
    return figure(traces, 70 + row * len(order), xaxis=time, yaxis=systems, bargap=0.35, barmode="overlay")


def _target_bar(race: Race, entry: Entry, look: Look, place: int) -> Chart:
    reached = to_target(race, entry)
    several = reached is not None and reached.attempts > 1
    error = [reached.high - reached.mean] if reached and several else [0]
    below = [reached.mean - reached.low] if reached and several else [0]
    return bars(
        orientation="h",
        x=[reached.mean if reached else 0],
        y=[place],
        **_named(entry),
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
    rounds, share = axis("rounds late", type="category", showgrid=False), axis(tickformat=".0%", rangemode="tozero")
    return figure(traces, 300, xaxis=rounds, yaxis=share, barmode="group", bargap=0.3, bargroupgap=0.08)


def _ages(entry: Entry, bins: list[str], look: Look) -> Chart:
    total = sum(entry.staleness.values())
    counts = [0] * len(bins)
    for age, count in entry.staleness.items():
        if age > 0:
            counts[min(age, len(bins)) - 1] += count
    shares, hover = [count / total for count in counts], "%{y:.1%} of its contributions"
    return bars(x=bins, y=shares, **_named(entry), marker=_marker(look), hovertemplate=hover)


def _named(entry: Entry) -> dict[str, str]:
    return {"name": label(entry.title), "meta": entry.system}


def _marker(look: Look) -> dict[str, Any]:
    pattern = {"shape": look.pattern, "fillmode": "overlay", "fgcolor": SURFACE, "solidity": 0.25, "size": 6}
    return {"color": look.colour, "cornerradius": 3, "line": {"width": 0}, "pattern": pattern}


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


def _curve(race: Race, entry: Entry, attempt: Attempt, look: Look, value: Callable[[Point], float]) -> Chart:
    several = len(entry.finished) > 1
    width = 1.3 if several else 2.6 if entry is race.winner else 2.0
    number = "%{y:.1%}" if race.metric.is_share and value is _metric else "%{y:.4g}"
    points = [point for point in thinned(list(attempt.curve)) if math.isfinite(value(point))]
    return lines(
        x=[round(point.seconds, 4) for point in points],
        y=[value(point) for point in points],
        name=label(entry.title) + (f", seed {attempt.seed}" if several else ""),
        meta=entry.system,
        mode="lines+markers" if len(points) < 3 else "lines",
        line={"color": look.colour, "width": width, "dash": look.dash},
        hovertemplate=f"{number} at %{{x:.1f}} s",
    )


def _training(race: Race) -> list[Chart]:
    return [_faint(entry, attempt.losses, look) for entry, attempt, look in _attempts(race) if attempt.losses]


def _faint(entry: Entry, losses: Sequence[Losses], look: Look) -> Chart:
    """While it trained: noisy, so thin and without a word of its own."""
    points = [point for point in thinned(list(losses)) if math.isfinite(point.loss)]
    x, y = [round(point.seconds, 4) for point in points], [point.loss for point in points]
    line = {"color": look.colour, "width": 1}
    return lines(x=x, y=y, **_named(entry), mode="lines", opacity=0.3, line=line, hoverinfo="skip")


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


def _scale(traces: Sequence[Chart]) -> dict[str, Any]:
    values = [value for trace in traces for value in trace["y"]]
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
    return {"shapes": [_level(target)], "annotations": [word]}


def _level(height: float, **more: str) -> dict[str, Any]:
    """A dotted line across the chart."""
    place = {"xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height}
    return {"type": "line", **place, **more, "line": {"color": INK, "width": 1, "dash": "dot"}}


def waiting_charts(race: Race) -> dict[str, dict[str, Any]]:
    """By system: what each rank's time went into, in seconds, in the mean over attempts."""
    entries = [entry for entry in race.finished if _ranks(entry)]
    longest = max((rank.seconds for e in entries for a in e.finished for rank in a.ranks), default=1.0)
    charts = {}
    for entry in entries:
        colour = {"color": looks(race)[entry.system].colour}
        parts: list[Part] = [
            ("computing", lambda rank: rank.computed_s, colour),
            ("waiting", lambda rank: rank.waited_s, hatched()),
            ("applying and the rest", _rest, {"color": APPLY}),
        ]
        charts[entry.system] = _stacked(entry, parts, "%{y:.2f} s", range=[0, longest * 1.04], ticksuffix=" s")
    return charts


def share_charts(race: Race) -> dict[str, dict[str, Any]]:
    """By system: how much of what was applied each rank gave. The even share is a line."""
    entries = [entry for entry in race.finished if any(map(_contributed, _all_ranks(entry)))]
    charts = {}
    highest = max((_contributed(rank) for entry in entries for rank in _all_ranks(entry)), default=1.0)
    for entry in entries:
        colour = looks(race)[entry.system].colour
        parts: list[Part] = [
            ("on time", lambda rank: rank.share - _share_of(rank, rank.carried), {"color": colour}),
            ("carried", lambda rank: _share_of(rank, rank.carried), {"color": colour, "opacity": 0.45}),
            ("dropped", lambda rank: _share_of(rank, rank.dropped), hatched()),
        ]
        chart = _stacked(entry, parts, "%{y:.1%}", range=[0, highest * 1.1], tickformat=".0%", showgrid=False)
        chart["layout"]["shapes"] = [_level(1 / len(_ranks(entry)), layer="above")]
        charts[entry.system] = chart
    return charts


def _ranks(entry: Entry) -> list[int]:
    return sorted({rank.rank for rank in _all_ranks(entry)})[:MOST_RANKS]


def _all_ranks(entry: Entry) -> list[RankResult]:
    return [rank for attempt in entry.finished for rank in attempt.ranks]


def _rest(rank: RankResult) -> float:
    return max(0.0, rank.seconds - rank.computed_s - rank.waited_s)


def _share_of(rank: RankResult, count: int) -> float:
    """On the scale of the rank's share, so that the heights of a bar's parts are as their counts."""
    applied = rank.on_time + rank.carried
    return rank.share * count / applied if applied else 0.0


def _contributed(rank: RankResult) -> float:
    return rank.share + _share_of(rank, rank.dropped)


def _stacked(entry: Entry, parts: list[Part], number: str, **scale: Any) -> dict[str, Any]:
    traces = []
    for name, value, marker in parts:
        heights = [_mean(entry, rank, value) for rank in _ranks(entry)]
        if any(heights):
            look, hover = {**marker, "line": {"width": 0}}, f"rank %{{x}}: {number}"
            traces.append(bars(x=_ranks(entry), y=heights, name=name, marker=look, hovertemplate=hover))
    ranks = axis("rank", dtick=max(1, -(-len(_ranks(entry)) // 8)), showgrid=False)
    layout = {"barmode": "stack", "bargap": 0.22, "margin": {"l": 4, "r": 4, "t": 6, "b": 4}}
    return figure(traces, SMALL_HEIGHT, xaxis=ranks, yaxis=axis(**scale, nticks=5), **layout)


def _mean(entry: Entry, number: int, value: Callable[[RankResult], float]) -> float:
    found = [value(rank) for rank in _all_ranks(entry) if rank.rank == number]
    return round(fmean(found), 6)
