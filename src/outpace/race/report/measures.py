"""Figures of an entry that the race's values do not name themselves. Pure; None where there is nothing to say."""

from __future__ import annotations

import math
from statistics import fmean

from outpace.race.report.numbers import Spread, spread
from outpace.race.result import Attempt, Entry, Race


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


def final(entry: Entry) -> Spread | None:
    """The metric at the end."""
    return spread([attempt.curve[-1].metric for attempt in entry.finished if attempt.curve])


def speedup(race: Race, entry: Entry) -> float | None:
    """Over the baseline, in samples a second; None where one of both did nothing."""
    if race.baseline is None or not race.baseline.mean(lambda attempt: attempt.samples_per_s):
        return None
    return race.speedup(entry)


def target_times(race: Race, entry: Entry) -> list[float]:
    """When each attempt reached the target; those that never did are left out."""
    if race.target is None:
        return []
    reached = (attempt.seconds_to(race.target, race.metric) for attempt in entry.finished)
    return [seconds for seconds in reached if seconds is not None]


def to_target(race: Race, entry: Entry) -> Spread | None:
    """The time to the target; None unless every attempt reached it."""
    reached = target_times(race, entry)
    return spread(reached) if len(reached) == len(entry.finished) else None


def is_worse(race: Race, entry: Entry, other: Entry) -> bool:
    """Whether its model is worse at the end than another's by more than a point, or 2 % where a point means nothing."""
    mine, its = entry.final, other.final
    if mine is None or its is None or math.isnan(its):
        return False
    if math.isnan(mine):
        return True
    margin = 0.01 if race.metric.is_share else 0.02 * abs(its)
    return (its - mine if race.metric.higher_is_better else mine - its) > margin
