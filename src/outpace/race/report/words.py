"""What the page and the terminal say of a race: the verdict with its reasons and reservations, and the facts.

Pure; never claims a win that the figures do not carry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from outpace.race.report.table import (
    Spread,
    counted,
    dropped_share,
    listed,
    percent,
    seconds,
    spread,
    times,
    to_target,
    waited_share,
)
from outpace.race.result import HELD, LEARNED, Entry, Race

ALIKE = 1.05  #: times that differ by no more than this factor are noise


def outcome(race: Race) -> Iterator[str]:
    winner = race.winner
    if not race.finished:
        yield _nobody_finished(race)
    elif len(race.finished) == 1:
        yield _alone(race, race.finished[0])
    elif race.was_too_busy:
        yield from _too_busy(race)
    elif winner is None:
        yield from _nobody_won(race)
    elif race.target is None:
        yield from _fastest(race, winner)
    else:
        yield from _first(race, winner)


def _too_busy(race: Race) -> Iterator[str]:
    yield "This machine was too busy, so the times are not comparable."
    yield f"Ranks computed up to {times(race.overrun)} as long as they were asked to."
    yield "Run it again on an idle machine, with fewer --ranks or a longer --compute-ms."


def _nobody_won(race: Race) -> Iterator[str]:
    """Speed is not praised where nothing was learned by it."""
    and_learned = " and learned as much as the baseline" if any(map(race.target_times, race.finished)) else ""
    yield f"No system reached {target_text(race)}{and_learned}, so nobody won."
    better = max if race.metric.higher_is_better else min
    finals = [(entry.final, entry.title) for entry in race.finished if entry.final is not None]
    known = [pair for pair in finals if not math.isnan(pair[0])]
    if known:
        final, title = better(known, key=lambda pair: pair[0])
        yield f"The best model was that of {title}: {race.metric.name} {race.metric.text(final)}."


def _nobody_finished(race: Race) -> str:
    failed = [entry.title for entry in race.entries if entry.error is not None]
    why = f": {listed(failed)} failed" if failed else ""
    return f"Nobody won: no system finished{why}. There is nothing to compare."


def _alone(race: Race, entry: Entry) -> str:
    start = "Only" if len(race.entries) == 1 else "Of all systems only"
    did = "ran" if len(race.entries) == 1 else "finished"
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
    if race.target is None:
        return ""
    if race.metric.is_share:
        return f"{race.metric.text(race.target)} {race.metric.name}"
    return f"a {race.metric.name} of {race.metric.text(race.target)}"


@dataclass(frozen=True)
class Duel:
    """The winner and its rival: the baseline, or the next best where the baseline won."""

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
        """Whether a repetition might reverse it: the means are close, or the attempts overlap."""
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
        yield _tie(duel, f"{winner.title} reached {target_text(race)}")
    else:
        verb = "won" if base else "was first"
        need = f"{duel.other.title} needed {seconds(duel.theirs.mean)} ({times(duel.gain)})"
        yield f"{winner.title} {verb}: {reached}, where {need}."
        near = [e for e in rivals if e is not duel.other and not race.learned_less(e)]
        tied = [e.title for e in near if (time := to_target(race, e)) and time.mean <= ALIKE * ours.mean]
        if tied:
            yield f"{listed(tied)} {'was' if len(tied) == 1 else 'were'} as fast, within noise."
    if base is None:
        yield _no_baseline(race)


def _others_missed(race: Race, winner: Entry, duel: Duel | None) -> str:
    if duel is None or race.baseline is None:
        sometimes = any(race.target_times(entry) for entry in race.finished if entry is not winner)
        return f"which no other system did{' every time' if sometimes else ''}"
    return f"which {race.baseline.title} {'did not every time' if race.target_times(race.baseline) else 'never did'}"


def _unbeaten(duel: Duel, did: str) -> str:
    if duel.alike:
        near = f"{duel.other.title} was as fast ({seconds(duel.theirs.mean)})"
    else:
        near = f"the next, {duel.other.title}, needed {seconds(duel.theirs.mean)} ({times(duel.gain)} as long)"
    return f"No strategy beat {duel.winner.title} here: {did}; {near}."


def _tie(duel: Duel, did: str) -> str:
    against = f"in {seconds(duel.ours.mean)}, {duel.other.title} in {seconds(duel.theirs.mean)}"
    return f"A tie: {did} {against}, which is within noise."


def _fastest(race: Race, winner: Entry) -> Iterator[str]:
    """There is no target, or nobody reached it: the work done in a second is all that can be compared."""
    rivals = [entry for entry in race.finished if entry is not winner]
    duel = _duel(race, winner, rivals, _seconds_per_sample)
    if duel is None:
        return
    gain = race.speedup(winner)
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


def facts(race: Race) -> dict[str, str]:
    s = race.settings
    found = {
        **_trained(race),
        "ranks": f"{counted(s.ranks, 'process')[:-1] + 'es' if s.ranks > 1 else '1 process'} on this machine",
        "imbalance": "none: no rank was slowed down" if s.uneven == "none" else s.uneven,
        "length": length(race),
        "computing": computing(race),
        "target": _target(race),
        "seed": f"{s.seed}" if s.repeat == 1 else f"{s.seed} to {s.seed + s.repeat - 1}, one for each repetition",
        "machine": race.machine,
        "outpace": race.outpace,
        "date": date(race),
    }
    return {name: text for name, text in found.items() if text}


def _trained(race: Race) -> dict[str, str]:
    s = race.settings
    if s.script is not None:
        return {"script": " ".join([s.script, *s.arguments]), "judged by": f"{race.metric.name}, all it reports"}
    return {"workload": f"{s.workload}, judged by {race.metric.name} on data that no rank trains on"}


def measured(race: Race) -> str:
    """What the curve of the metric is of. Nobody knows a script's held-out data."""
    name = race.metric.name
    return name.capitalize() if race.settings.script is not None else f"Held-out {name}"


def length(race: Race) -> str:
    s = race.settings
    if s.epochs is not None:
        return f"{s.epochs:g} {'epoch' if s.epochs == 1 else 'epochs'}"
    if s.rounds is not None:
        return f"{counted(s.rounds, 'round')}: a mini-batch of every rank each"
    return f"{s.seconds:g} seconds" if s.seconds is not None else ""


def computing(race: Race) -> str:
    """Whether the ranks really computed: readers of the times must know."""
    ms = race.settings.compute_ms
    if race.settings.is_emulated:
        return (
            f"emulated by sleeping: {ms:g} ms for a mean mini-batch. Models are really trained and ranks really wait "
            "and communicate, but how long a step computes is this scenario's, not this machine's"
        )
    return "real, on this machine's processors; ranks beyond its cores slow each other down"


def _target(race: Race) -> str:
    if race.target is None:
        return "none: nothing was measured to derive one from"
    text = target_text(race)
    if race.settings.target is not None or race.baseline is None:
        return text
    return f"{text}: {LEARNED:.0%} of what {race.baseline.title} learned"


def date(race: Race) -> str:
    """For people; text that is not a date is shown unchanged."""
    try:
        return datetime.fromisoformat(race.began).strftime("%-d %B %Y, %H:%M")
    except ValueError:
        return race.began


def notes(race: Race) -> dict[str, str]:
    base = race.baseline.title if race.baseline else "a baseline, which did not run"
    s = race.settings
    return {
        race.metric.name: "on data that no rank trains on, after equal samples" if not s.script else "while training",
        "to target": f"when {race.metric.name} was as good as the target, the dotted line in the chart, and stayed so: "
        f"from then on in the mean of any {HELD} points in a row, and at the end",
        "learning rate": _about_rates(race),
        "time": "training alone, from the first rank's first step to the last rank's end",
        "speed-up": f"in samples per second, over {base}; says nothing about how good the model is",
        "waited": "share of their time in which ranks waited for others, or for a result; mean over ranks",
        "late": "share of the applied contributions that a later round took in than the one they were computed for",
        "stalest": "rounds that the latest of these came late",
        "slowest's share": f"of all that was applied; {1 / race.settings.ranks:.1%} would be even",
        "spread": _about_repeats(race),
    }


def _about_rates(race: Race) -> str:
    if race.settings.tune:
        return "times the workload's own: the best of those tried in simulated time, on a seed that is not in the race"
    return "the same for every system; --tune finds each one's own"


def _about_repeats(race: Race) -> str:
    if any(len(entry.attempts) > 1 for entry in race.entries):
        return "figures are means over repetitions, and below them the smallest and the largest"
    return "each system ran once, so small differences may be noise; --repeat 3 shows how much"


def verdict(race: Race) -> str:
    """Who won, why, and what takes away from it."""
    return " ".join(sentences(race))


def sentences(race: Race) -> list[str]:
    """The verdict, a sentence an item; the first one says who won."""
    return [*outcome(race), *_why(race), *_reservations(race)]


def _why(race: Race) -> Iterator[str]:
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
    yield from _learned_less(race)
    if len(race.finished) > 1 and max(len(entry.finished) for entry in race.finished) == 1:
        yield "That is one seed: --repeat 3 shows how much is luck."
    yield from _failures(race)
    missing = [entry.title for entry in race.entries if not entry.attempts]
    if race.interrupted:
        rest = f": {listed(missing)} did not run." if missing else "; what is missing was not run."
        yield f"The race was interrupted{rest}"
    elif missing:
        yield f"{listed(missing)} did not run."
    if race.settings.is_emulated and race.finished:
        yield f"Computing was emulated: ranks slept {race.settings.compute_ms:g} ms for a mean mini-batch."


def _learned_less(race: Race) -> Iterator[str]:
    less = [entry for entry in race.finished if race.learned_less(entry)]
    if not less or len(race.finished) < 2:
        return
    against = ""
    if race.baseline is not None and race.baseline.final is not None:
        against = f" than {race.baseline.title} ({race.metric.text(race.baseline.final)})"
    named = [f"{entry.title} ({_final_text(race, entry.final)})" for entry in less if entry.final is not None]
    yield f"{listed(named)} learned less{against}, however fast."


def _failures(race: Race) -> Iterator[str]:
    failed = [entry.title for entry in race.entries if entry.error is not None]
    if failed and race.finished:
        yield f"{listed(failed)} failed and {'is' if len(failed) == 1 else 'are'} not ranked."
    for entry in race.finished:
        lost = len(entry.attempts) - len(entry.finished)
        if lost:
            yield f"{lost} of {counted(len(entry.attempts), 'attempt')} of {entry.title} failed and did not count."


def headline_figures(race: Race) -> list[tuple[str, str]]:
    """The few large numbers at the top, each with its meaning. Empty without a comparison."""
    base, winner = race.baseline, race.winner
    if base is None or winner is None or winner is base:
        return []
    figures = []
    if winner.final is not None and base.final is not None:
        figures.append((_final_text(race, winner.final), f"{_final_text(race, base.final)} with {base.title}"))
    figures.append(_speed_tile(race, base, winner))
    ours, theirs = waited_share(winner), waited_share(base)
    if ours and theirs:
        about = f"of their time ranks waited: {base.title} → {winner.title}"
        figures.append((f"{percent(theirs.mean)} → {percent(ours.mean)}", about))
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
    gain = race.speedup(winner)
    return (times(gain), f"the samples per second of {base.title}") if gain else ("", "")
