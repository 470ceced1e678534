"""From recordings to figures of an attempt. Pure: traces in, values out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from outpace.observe.figures import applied_shares, staleness_of
from outpace.observe.schema import Tally
from outpace.observe.trace import RankTrace, Trace
from outpace.race.result import Attempt, Losses, Point, RankResult

LOSSES = 200  #: points of the training loss


def attempt_of(
    attempt: Attempt,
    trace: Trace,
    samples: Sequence[float] = (),
    curve: Sequence[Point] = (),
    asked_s: Sequence[float] = (),
) -> Attempt:
    """The attempt with all that was recorded of it.

    `samples`, and the seconds that computing was asked to take, are those of each rank; without them every step counts
    as one, and took as long as asked. The curve's seconds are counted from rank 0's first step; without one, the loss
    while training stands for it.
    """
    ranks = list(trace.ranks.values())
    tallies = {rank.rank: rank.tally or _in_step(rank) for rank in ranks}
    shares = applied_shares(tallies)
    made = {r.rank: samples[r.rank] if samples else float(len(r.steps)) for r in ranks}
    results = tuple(_rank_result(r, tallies[r.rank], shares[r.rank], made[r.rank]) for r in ranks)
    if any(asked_s):
        results = tuple(replace(result, overrun=result.computed_s / asked_s[result.rank]) for result in results)
    staleness = tuple(staleness_of(tallies.values()).items())
    began_s = min(rank.steps[0].begin_ns for rank in ranks) / 1e9
    seconds = max(rank.end_ns for rank in ranks) / 1e9 - began_s
    losses = _losses(trace, began_s, seconds)
    late_s = ranks[0].steps[0].begin_ns / 1e9 - began_s
    points = [point._replace(seconds=point.seconds + late_s) for point in curve]
    points = points or [Point(loss.seconds, math.nan, loss.loss, loss.loss) for loss in losses]
    return replace(attempt, seconds=seconds, curve=tuple(points), losses=losses, staleness=staleness, ranks=results)


def _rank_result(rank: RankTrace, tally: Tally, share: float, samples: float) -> RankResult:
    begin_ns = rank.steps[0].begin_ns
    paused_s = sum(pause.end_ns - pause.begin_ns for pause in rank.pauses if pause.begin_ns >= begin_ns) / 1e9
    return RankResult(
        rank=rank.rank,
        steps=len(rank.steps),
        samples=samples,
        seconds=(rank.end_ns - begin_ns) / 1e9,
        computed_s=sum(step.compute_s for step in rank.steps),
        waited_s=sum(step.waited_s for step in rank.steps) + paused_s,
        on_time=tally.on_time,
        carried=tally.carried,
        dropped=tally.dropped,
        share=share,
    )


def _in_step(rank: RankTrace) -> Tally:
    """What is never late: every step of a system that waits for everybody."""
    steps = len(rank.steps)
    return Tally(applied=((0, steps),), on_time=steps, carried=0, dropped=0)


def _losses(trace: Trace, began_s: float, seconds: float) -> tuple[Losses, ...]:
    """Of all ranks, in equal spans of time that are as many as the steps of one rank, up to a limit."""
    given = [(s.ready_ns / 1e9 - began_s, s.loss) for r in trace.ranks.values() for s in r.steps if s.loss is not None]
    spans = min(LOSSES, max(len(rank.steps) for rank in trace.ranks.values()))
    width_s = seconds / spans
    bins: dict[int, list[tuple[float, float]]] = {}
    for at_s, loss in given:
        bins.setdefault(min(spans - 1, int(at_s / width_s)) if width_s else 0, []).append((at_s, loss))
    return tuple(Losses(*map(fmean, zip(*found, strict=True))) for _, found in sorted(bins.items()))
