"""What was run, where, and what the page's columns and colours mean, in words. Pure."""

from __future__ import annotations

from datetime import datetime

from outpace.race.report.numbers import counted
from outpace.race.report.outcome import target_text
from outpace.race.result import LEARNED, Race


def facts(race: Race) -> dict[str, str]:
    """The scenario and the machine."""
    s = race.settings
    found = {
        **_trained(race),
        "ranks": f"{counted(s.ranks, 'process')[:-1] + 'es' if s.ranks > 1 else '1 process'} on this machine",
        "imbalance": "none: no rank was slowed down" if s.imbalance == "none" else s.imbalance,
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
        return {"script": " ".join([s.script, *s.arguments]), "judged by": f"{race.metric.name}, which is all it tells"}
    return {"workload": f"{s.workload}, judged by {race.metric.name} on data that no rank trains on"}


def measured(race: Race) -> str:
    """What the curve of the metric is of. Nobody knows a script's held-out data."""
    name = race.metric.name
    return name.capitalize() if race.settings.script is not None else f"Held-out {name}"


def length(race: Race) -> str:
    """How long each rank trained."""
    s = race.settings
    if s.epochs is not None:
        return f"{s.epochs:g} {'epoch' if s.epochs == 1 else 'epochs'}"
    if s.rounds is not None:
        return f"{counted(s.rounds, 'round')}: a mini-batch of every rank each"
    return f"{s.seconds:g} seconds" if s.seconds is not None else ""


def computing(race: Race) -> str:
    """Whether the ranks' computing was real: whoever reads the times must know."""
    ms = race.settings.compute_ms
    if race.settings.is_emulated:
        return (
            f"emulated by sleeping: {ms:g} ms for a mean mini-batch. Models are really trained and ranks really wait "
            "and communicate, but how long a step computes is this scenario's, not this machine's"
        )
    return "real, on this machine's processors; ranks beyond its cores slow each other down"


def _target(race: Race) -> str:
    if race.target is None:
        return "none: nothing was measured that one could be taken from"
    text = target_text(race)
    if race.settings.target is not None or race.baseline is None:
        return text
    return f"{text}: {LEARNED:.0%} of what {race.baseline.title} learned"


def date(race: Race) -> str:
    """For people; what is no date is shown as it is."""
    try:
        return datetime.fromisoformat(race.began).strftime("%-d %B %Y, %H:%M")
    except ValueError:
        return race.began


def notes(race: Race) -> dict[str, str]:
    """What the table's columns mean."""
    base = race.baseline.title if race.baseline else "a baseline, which did not run"
    return {
        "time": "training alone, from the first rank's first step to the last rank's end",
        "speed-up": f"in samples per second, over {base}; says nothing about how good the model became",
        "to target": f"when {race.metric.name} was first as good as the target, which is the dotted line in the chart",
        "waited": "share of their time in which ranks waited for others, or for a result; mean over ranks",
        "late": "share of the applied contributions that a later round took in than the one they were computed for",
        "stalest": "rounds that the latest of these came late",
        "slowest's share": f"of all that was applied; {1 / race.settings.ranks:.1%} would be even",
        "spread": _about_repeats(race),
    }


def _about_repeats(race: Race) -> str:
    if any(len(entry.attempts) > 1 for entry in race.entries):
        return "figures are means over repetitions, and below them the smallest and the largest"
    return "each system ran once, so small differences may be noise; --repeat 3 shows how much"
