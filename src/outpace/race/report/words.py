"""The verdict: who won a race, and why, in sentences that also hold when there is little to tell.

Owns the wording that the page and the terminal share. Pure; never claims a win that the figures do not carry.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from outpace.race.report.measures import dropped_share, is_worse, speedup, to_target, waited_share
from outpace.race.report.numbers import Spread, counted, listed, percent, seconds, times
from outpace.race.report.outcome import outcome, target_text
from outpace.race.result import Entry, Race


def verdict(race: Race) -> str:
    """Who won, why, and what takes away from it."""
    return " ".join(sentences(race))


def sentences(race: Race) -> list[str]:
    """The verdict, a sentence an item; the first one says who won."""
    return [*outcome(race), *_why(race), *_reservations(race)]


def _why(race: Race) -> Iterator[str]:
    """What ranks did with their time, and what came late."""
    base, winner = race.baseline, race.winner
    if base is None or winner is None or len(race.finished) < 2:
        return
    ours, theirs = waited_share(winner), waited_share(base)
    if winner is not base and ours and theirs:
        whom = "for the slowest" if theirs.mean >= 0.1 else "for each other"
        rest = f"{winner.title}'s {percent(ours.mean)}"
        yield f"{base.title}'s ranks waited {percent(theirs.mean)} of their time {whom}; {rest}."
    if winner is base and theirs:
        yield _nothing_to_win(theirs)
    if winner.late_share > 0:
        yield _late(winner)
    if dropped_share(winner) > 0:
        yield f"{percent(dropped_share(winner))} of its contributions were dropped."


def _nothing_to_win(waited: Spread) -> str:
    if waited.mean < 0.1:
        return f"Its ranks were even: they waited {percent(waited.mean)} of their time, so there was nothing to win."
    return f"Its ranks waited {percent(waited.mean)} of their time, but not waiting did not pay off here."


def _late(entry: Entry) -> str:
    latest = max(entry.staleness)
    how = "a round late" if latest == 1 else f"late, by up to {counted(latest, 'round')},"
    return f"{percent(entry.late_share)} of its contributions came {how} and were carried."


def _reservations(race: Race) -> Iterator[str]:
    yield from _quality(race)
    yield from _failures(race)
    missing = [entry.title for entry in race.entries if not entry.attempts]
    if race.interrupted:
        rest = f": {listed(missing)} did not run." if missing else "; what is missing was not run."
        yield f"The race was interrupted{rest}"
    elif missing:
        yield f"{listed(missing)} did not run."
    if race.settings.is_emulated and race.finished:
        yield f"Computing was emulated: ranks slept {race.settings.compute_ms:g} ms for a mean mini-batch."


def _quality(race: Race) -> Iterator[str]:
    base, winner = race.baseline, race.winner
    if base is None or winner is None or winner is base or winner.final is None or base.final is None:
        return
    if is_worse(race, winner, base):
        mine = "not a number: it diverged" if math.isnan(winner.final) else race.metric.text(winner.final)
        yield (
            f"But its model ended worse: {race.metric.name} {mine}, against {race.metric.text(base.final)} with "
            f"{base.title}."
        )


def _failures(race: Race) -> Iterator[str]:
    failed = [entry.title for entry in race.entries if entry.error is not None]
    if failed and race.finished:
        yield f"{listed(failed)} failed and {'is' if len(failed) == 1 else 'are'} not ranked."
    for entry in race.finished:
        lost = len(entry.attempts) - len(entry.finished)
        if lost:
            yield f"{lost} of {counted(len(entry.attempts), 'attempt')} of {entry.title} failed and did not count."


def headline_figures(race: Race) -> list[tuple[str, str]]:
    """The few numbers that stand large above everything, each with what it is of. Empty without a comparison."""
    base, winner = race.baseline, race.winner
    if base is None or winner is None or winner is base:
        return []
    figures = [_speed_tile(race, base, winner)]
    ours, theirs = waited_share(winner), waited_share(base)
    if ours and theirs:
        figures.append(
            (
                f"{percent(theirs.mean)} → {percent(ours.mean)}",
                f"of their time ranks waited: {base.title} → {winner.title}",
            )
        )
    if winner.final is not None and base.final is not None:
        figures.append((_final_text(race, winner.final), f"{_final_text(race, base.final)} with {base.title}"))
    return [figure for figure in figures if figure[0]]


def _final_text(race: Race, value: float) -> str:
    if math.isnan(value):
        return "diverged"
    text, name = race.metric.text(value), race.metric.name
    return f"{text} {name}" if race.metric.is_share else f"{name} {text}"


def _speed_tile(race: Race, base: Entry, winner: Entry) -> tuple[str, str]:
    ours, theirs = to_target(race, winner), to_target(race, base)
    if ours and theirs and ours.mean:
        about = f"as fast to {target_text(race)}: {seconds(ours.mean)} instead of {seconds(theirs.mean)}"
        return times(theirs.mean / ours.mean), about
    gain = speedup(race, winner)
    return (times(gain), f"the samples per second of {base.title}") if gain else ("", "")
