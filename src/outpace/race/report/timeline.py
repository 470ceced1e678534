"""A piece of a trace as a chart: a row for each rank, a bar for each span, an arrow for each carried contribution.

Owns the choice: the last rounds in which all ranks still trained, and no more spans than the eye can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from outpace.observe.figures import carried, spans
from outpace.observe.schema import Trace
from outpace.race.report.layout import APPLY, ARROW, MUTED, Chart, Look, axis, bars, figure, hatched, lines

MOST_STEPS = 12  #: of a rank
MOST_SPANS = 1200
MOST_ARROWS = 120
ROW, MOST_HEIGHT = 25, 620


class Span(NamedTuple):
    rank: int
    kind: str  #: computing, waiting or applying
    begin_s: float
    end_s: float
    about: str


class Arrow(NamedTuple):
    """A late contribution, from where it was computed to where the round that took it in was applied."""

    from_rank: int
    from_s: float
    to_rank: int
    to_s: float
    round: int
    late: int


@dataclass(frozen=True)
class Window:
    """A piece of a trace, with times since it began."""

    seconds: float
    ranks: tuple[int, ...]
    spans: tuple[Span, ...]
    arrows: tuple[Arrow, ...]
    rounds: tuple[float, ...]  #: when each was applied


def length_s(trace: Trace) -> float:
    """How long a piece of this trace can be shown."""
    end, each = _end_ns(trace), min(MOST_STEPS, max(1, MOST_SPANS // (3 * len(trace.ranks))))
    begins = []
    for rank in trace.ranks.values():
        done = [step for step in rank.steps if step.begin_ns < end]
        begins.append(done[-min(each, len(done))].begin_ns if done else end)
    return max(1, end - max(begins)) / 1e9


def window(trace: Trace, seconds: float) -> Window:
    """The last piece of this length; times are cut at its borders."""
    end = _end_ns(trace)
    begin = max(0, end - round(seconds * 1e9))
    found = [span for span in _all_spans(trace, begin) if span.end_s > 0 and span.begin_s < (end - begin) / 1e9]
    cut = [_cut(span, (end - begin) / 1e9) for span in sorted(found, key=lambda span: -span.end_s)[:MOST_SPANS]]
    arrows = [arrow for arrow in _arrows(trace, begin) if arrow.from_s >= 0 and arrow.to_s <= (end - begin) / 1e9]
    rounds = sorted({(r.at_ns - begin) / 1e9 for r in trace.rounds if begin <= r.at_ns <= end and not r.void})
    return Window((end - begin) / 1e9, tuple(trace.ranks), tuple(cut), tuple(arrows[-MOST_ARROWS:]), tuple(rounds))


def _end_ns(trace: Trace) -> int:
    """When the first rank had trained to its end: after that, the others are no longer waited for."""
    return min(rank.steps[-1].end_ns for rank in trace.ranks.values())


def _all_spans(trace: Trace, begin_ns: int) -> Iterator[Span]:
    for rank in trace.ranks.values():
        for step in (step for step in rank.steps if step.end_ns > begin_ns):
            for kind, begin, end in spans(step):
                if end > begin:
                    about = f"step {step.number}" + (f", {step.late} late" if step.late else "")
                    yield Span(rank.rank, kind, (begin - begin_ns) / 1e9, (end - begin_ns) / 1e9, about)
        for pause in rank.pauses:
            moved = pause.shifted(-begin_ns)
            yield Span(rank.rank, "waiting", moved.begin_ns / 1e9, moved.end_ns / 1e9, pause.name)


def _cut(span: Span, end_s: float) -> Span:
    return span._replace(begin_s=max(0.0, span.begin_s), end_s=min(end_s, span.end_s))


def _arrows(trace: Trace, begin_ns: int) -> Iterator[Arrow]:
    for rank, step, taken in carried(trace, begin_ns):
        ready, at = (step.ready_ns - begin_ns) / 1e9, (taken.at_ns - begin_ns) / 1e9
        yield Arrow(rank, ready, taken.recorded_by, at, taken.number, taken.number - (step.version or 0))


def timeline_figure(shown: Window, look: Look, seconds: float) -> dict[str, Any]:
    """The chart of one system; `seconds` is the length of the axis, which all systems share."""
    kinds = {"waiting": hatched(), "computing": {"color": look.colour}, "applying": {"color": APPLY}}
    traces: list[Any] = [_spans(shown, kind, marker) for kind, marker in kinds.items()]
    traces += [_rounds(shown)] if shown.rounds else []
    traces += [_drawn_arrows(shown.arrows)] if shown.arrows else []
    count = max(shown.ranks) + 1
    height, every = min(MOST_HEIGHT, 60 + ROW * count), max(1, -(-count // 16))
    time = axis("seconds, of the last rounds", range=[0, seconds], fixedrange=False)
    ranks = axis(showgrid=False, range=[count - 0.4, -0.6], tickprefix="rank ", dtick=every, ticks="", tick0=0)
    return figure(traces, height, barmode="overlay", bargap=0.26, hovermode="closest", xaxis=time, yaxis=ranks)


def _spans(shown: Window, kind: str, marker: dict[str, Any]) -> Chart:
    spans = [span for span in shown.spans if span.kind == kind]
    return bars(
        orientation="h",
        name=kind,
        y=[span.rank for span in spans],
        x=[round(span.end_s - span.begin_s, 6) for span in spans],
        base=[round(span.begin_s, 6) for span in spans],
        customdata=[[span.about, f"{(span.end_s - span.begin_s) * 1000:,.1f} ms"] for span in spans],
        marker={**marker, "line": {"width": 0}},
        hovertemplate="rank %{y}, %{customdata[0]}<br>" + kind + " %{customdata[1]}<extra></extra>",
    )


def _rounds(shown: Window) -> Chart:
    """Faint upright lines: where a round was applied."""
    x: list[float | None] = []
    y: list[float | None] = []
    for at_s in shown.rounds:
        x += [round(at_s, 6), round(at_s, 6), None]
        y += [-0.5, max(shown.ranks) + 0.5, None]
    line = {"color": MUTED, "width": 1, "dash": "dot"}
    return lines(x=x, y=y, mode="lines", name="round", hoverinfo="skip", line=line)


def _drawn_arrows(arrows: tuple[Arrow, ...]) -> Chart:
    x: list[float | None] = []
    y: list[float | None] = []
    sizes: list[int] = []
    words: list[str] = []
    for arrow in arrows:
        x += [round(arrow.from_s, 6), round(arrow.to_s, 6), None]
        y += [arrow.from_rank, arrow.to_rank, None]
        sizes += [0, 9, 0]
        words += [f"rank {arrow.from_rank}'s contribution went with round {arrow.round}, {arrow.late} late"] * 3
    line, look = {"color": ARROW, "width": 1.6}, {"color": ARROW, "opacity": 1, "line": {"width": 0}}
    marker = {"symbol": "arrow", "angleref": "previous", "size": sizes, **look}
    hover = {"customdata": words, "hovertemplate": "%{customdata}<extra></extra>"}
    return lines(x=x, y=y, name="carried", mode="lines+markers", line=line, marker=marker, **hover)
