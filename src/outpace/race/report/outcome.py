"""The first sentences of the verdict: who was first. Owns the cases; `words` adds the reasons and the reservations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from outpace.race.report.measures import speedup, target_times, to_target
from outpace.race.report.numbers import Spread, listed, seconds, spread, times
from outpace.race.result import Entry, Race

ALIKE = 1.02  #: times that differ by no more than this factor are noise


def outcome(race: Race) -> Iterator[str]:
    """Who won, or why nobody can be said to have."""
    winner = race.winner
    if winner is None:
        yield _nobody_finished(race)
    elif len(race.finished) == 1:
        yield _alone(race, winner)
    elif race.target is not None and to_target(race, winner) is None:
        yield f"No system reached {target_text(race)}, so nobody won."
        yield from _fastest(race, winner)
    elif race.target is None:
        yield from _fastest(race, winner)
    else:
        yield from _first(race, winner)


def _nobody_finished(race: Race) -> str:
    failed = [entry.title for entry in race.entries if entry.error is not None]
    why = f": {listed(failed)} failed" if failed else ""
    return f"Nobody won: no system came to its end{why}. There is nothing to compare."


def _alone(race: Race, entry: Entry) -> str:
    """There is no race with one runner."""
    start = "Only" if len(race.entries) == 1 else "Of all systems only"
    did = "ran" if len(race.entries) == 1 else "came to its end"
    reached = to_target(race, entry)
    if reached and race.settings.target is not None:
        what = f"It reached {target_text(race)} in {seconds(reached.mean)}"
    elif race.settings.target is not None:
        what = f"It did not reach {target_text(race)}; it trained for {seconds(entry.seconds)}"
    else:
        what = f"It trained for {seconds(entry.seconds)}"
    return f"{start} {entry.title} {did}, so there is nothing to compare it with. {what}{_ended(race, entry)}."


def _ended(race: Race, entry: Entry) -> str:
    return "" if entry.final is None else f" and ended at {race.metric.name} {race.metric.text(entry.final)}"


def target_text(race: Race) -> str:
    """The target with its name; nothing if there is none."""
    if race.target is None:
        return ""
    if race.metric.is_share:
        return f"{race.metric.text(race.target)} {race.metric.name}"
    return f"a {race.metric.name} of {race.metric.text(race.target)}"


@dataclass(frozen=True)
class Duel:
    """The winner and whom it is held against: the baseline, or the next best where that is the winner itself."""

    race: Race
    winner: Entry
    other: Entry
    ours: Spread
    theirs: Spread

    @property
    def gain(self) -> float:
        """How many times longer the other one took."""
        if not self.ours.mean:
            return math.inf if self.theirs.mean else 1.0
        return self.theirs.mean / self.ours.mean

    @property
    def alike(self) -> bool:
        """Nothing that a repetition might not turn round: the means are close, or the attempts overlap."""
        repeated = min(self.ours.attempts, self.theirs.attempts) > 1
        return self.gain <= ALIKE or (repeated and self.ours.high >= self.theirs.low)


def _first(race: Race, winner: Entry) -> Iterator[str]:
    """There is a target, and the winner reached it."""
    rivals = [entry for entry in race.finished if entry is not winner and to_target(race, entry)]
    duel = _duel(race, winner, rivals, lambda entry: to_target(race, entry))
    ours = to_target(race, winner)
    assert ours is not None
    reached = f"it reached {target_text(race)} in {seconds(ours.mean)}"
    base = race.baseline
    if duel is None or (base is not None and winner is not base and base not in rivals):
        yield f"{winner.title} won: {reached}, {_others_missed(race, winner, duel)}."
    elif winner is base:
        yield _unbeaten(duel, reached)
    elif duel.alike:
        yield _as_fast(duel, f"it reached {target_text(race)}")
    else:
        verb = "won" if base else "was first"
        need = f"{duel.other.title} needed {seconds(duel.theirs.mean)} ({times(duel.gain)})"
        yield f"{winner.title} {verb}: {reached}, where {need}."
    if base is None:
        yield _no_baseline(race)


def _others_missed(race: Race, winner: Entry, duel: Duel | None) -> str:
    missed = [entry for entry in race.finished if entry is not winner] if duel is None else [race.baseline]
    sometimes = any(entry is not None and target_times(race, entry) for entry in missed)
    name = race.baseline.title if duel is not None and race.baseline is not None else "no other system"
    if duel is None:
        return f"which {name} did{' every time' if sometimes else ''}"
    return f"which {name} {'did not every time' if sometimes else 'never did'}"


def _unbeaten(duel: Duel, did: str) -> str:
    if duel.alike:
        near = f"{duel.other.title} was as fast ({seconds(duel.theirs.mean)})"
    else:
        near = f"the next, {duel.other.title}, needed {seconds(duel.theirs.mean)} ({times(duel.gain)} as long)"
    return f"No strategy beat {duel.winner.title} here: {did}; {near}."


def _as_fast(duel: Duel, did: str) -> str:
    against = f"in {seconds(duel.ours.mean)}, against {seconds(duel.theirs.mean)}"
    return f"{duel.winner.title} was as fast as {duel.other.title}, not faster: {did} {against}, which is within noise."


def _fastest(race: Race, winner: Entry) -> Iterator[str]:
    """There is no target, or nobody reached it: the work done in a second is all that can be compared."""
    rivals = [entry for entry in race.finished if entry is not winner]
    duel = _duel(race, winner, rivals, _seconds_per_sample)
    if duel is None:
        return
    gain = speedup(race, winner)
    if winner is race.baseline:
        yield f"No strategy was faster than {winner.title} here; the next was {duel.other.title}."
    elif duel.alike:
        yield f"{winner.title} was as fast as {duel.other.title}, in samples per second."
    elif gain is not None:
        yield f"{winner.title} was fastest: {times(gain)} the samples per second of {duel.other.title}."
    else:
        yield f"{winner.title} was fastest: {times(duel.gain)} the samples per second of the next, {duel.other.title}."
    if race.baseline is None:
        yield _no_baseline(race)


def _seconds_per_sample(entry: Entry) -> Spread | None:
    return spread([1 / attempt.samples_per_s for attempt in entry.finished if attempt.samples_per_s])


def _duel(race: Race, winner: Entry, rivals: list[Entry], time: Callable[[Entry], Spread | None]) -> Duel | None:
    """Against the baseline if that is a rival, else against the best of them."""
    timed = [(measured.mean, index, measured) for index, e in enumerate(rivals) if (measured := time(e))]
    ours = time(winner)
    if not timed or ours is None:
        return None
    _, index, theirs = next((t for t in timed if rivals[t[1]] is race.baseline), min(timed))
    return Duel(race, winner, rivals[index], ours, theirs)


def _no_baseline(race: Race) -> str:
    failed = any(entry.system == "ddp" and entry.error is not None for entry in race.entries)
    return f"DDP {'failed' if failed else 'did not take part'}, so there is no baseline to compare with."
