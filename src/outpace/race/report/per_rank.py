"""Small charts, one for each system, with a bar for each rank. Owns that all of a kind have one scale, to compare."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

import plotly.graph_objects as go

from outpace.race.report.colours import APPLY, INK, WAIT, WAIT_LINE, looks
from outpace.race.report.layout import axis, figure
from outpace.race.result import Entry, Race, RankResult

HEIGHT = 190
MOST_RANKS = 128  #: bars that a small chart can hold

Part = tuple[str, Callable[[RankResult], float], dict[str, Any]]


def waiting_charts(race: Race) -> dict[str, dict[str, Any]]:
    """By system: what each rank's time went into, in seconds, in the mean over attempts."""
    entries = [entry for entry in race.finished if _ranks(entry)]
    longest = max((rank.seconds for e in entries for a in e.finished for rank in a.ranks), default=1.0)
    charts = {}
    for entry in entries:
        colour = {"color": looks(race)[entry.system].colour}
        parts: list[Part] = [
            ("computing", lambda rank: rank.computed_s, colour),
            ("waiting", lambda rank: rank.waited_s, _hatched()),
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
            ("on time", lambda rank: rank.share - _carried(rank), {"color": colour}),
            ("carried", _carried, {"color": colour, "opacity": 0.45}),
            ("dropped", _dropped, _hatched()),
        ]
        chart = _stacked(entry, parts, "%{y:.1%}", range=[0, highest * 1.1], tickformat=".0%", showgrid=False)
        charts[entry.system] = _with_even_share(chart, 1 / len(_ranks(entry)))
    return charts


def _hatched() -> dict[str, Any]:
    pattern = {"shape": "/", "fgcolor": WAIT_LINE, "bgcolor": WAIT, "size": 5, "solidity": 0.25, "fillmode": "replace"}
    return {"color": WAIT, "pattern": pattern}


def _ranks(entry: Entry) -> list[int]:
    return sorted({rank.rank for rank in _all_ranks(entry)})[:MOST_RANKS]


def _all_ranks(entry: Entry) -> list[RankResult]:
    return [rank for attempt in entry.finished for rank in attempt.ranks]


def _rest(rank: RankResult) -> float:
    return max(0.0, rank.seconds - rank.computed_s - rank.waited_s)


def _carried(rank: RankResult) -> float:
    applied = rank.on_time + rank.carried
    return rank.share * rank.carried / applied if applied else 0.0


def _dropped(rank: RankResult) -> float:
    """On the scale of the share, so that the heights of a bar's parts are as their counts."""
    applied = rank.on_time + rank.carried
    return rank.share * rank.dropped / applied if applied else 0.0


def _contributed(rank: RankResult) -> float:
    return rank.share + _dropped(rank)


def _stacked(entry: Entry, parts: list[Part], number: str, **scale: Any) -> dict[str, Any]:
    traces = []
    for name, value, marker in parts:
        heights = [_mean(entry, rank, value) for rank in _ranks(entry)]
        if any(heights):
            bar = go.Bar(x=_ranks(entry), y=heights, name=name, marker={**marker, "line": {"width": 0}})
            traces.append(bar.update(hovertemplate=f"rank %{{x}}: {number}"))
    every = max(1, -(-len(_ranks(entry)) // 8))
    return figure(
        traces,
        HEIGHT,
        barmode="stack",
        bargap=0.22,
        xaxis=axis("rank", dtick=every, showgrid=False),
        yaxis=axis(**scale, nticks=5),
        margin={"l": 4, "r": 4, "t": 6, "b": 4},
    )


def _mean(entry: Entry, number: int, value: Callable[[RankResult], float]) -> float:
    found = [value(rank) for rank in _all_ranks(entry) if rank.rank == number]
    return round(fmean(found), 6)


def _with_even_share(chart: dict[str, Any], share: float) -> dict[str, Any]:
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": share, "y1": share, "layer": "above"}
    chart["layout"]["shapes"] = [{**line, "line": {"color": INK, "width": 1, "dash": "dot"}}]
    return chart
