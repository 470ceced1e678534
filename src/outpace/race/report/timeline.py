"""What a timeline shows of a trace. Owns the choice: the last rounds in which all ranks still trained, and no more
spans than the eye can tell apart. Pure; draws nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from outpace.observe.figures import carried, spans
from outpace.observe.trace import Trace

MOST_STEPS = 12  #: of a rank
MOST_SPANS = 1200
MOST_ARROWS = 120


class Span(NamedTuple):
    """A time in which a rank did one thing."""

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
            yield Span(
                rank.rank, "waiting", (pause.begin_ns - begin_ns) / 1e9, (pause.end_ns - begin_ns) / 1e9, pause.name
            )


def _cut(span: Span, end_s: float) -> Span:
    return span._replace(begin_s=max(0.0, span.begin_s), end_s=min(end_s, span.end_s))


def _arrows(trace: Trace, begin_ns: int) -> Iterator[Arrow]:
    for rank, step, taken in carried(trace, begin_ns):
        ready, at = (step.ready_ns - begin_ns) / 1e9, (taken.at_ns - begin_ns) / 1e9
        yield Arrow(rank, ready, taken.recorded_by, at, taken.number, taken.number - (step.version or 0))
