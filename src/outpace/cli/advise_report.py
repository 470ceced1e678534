"""The report of `outpace advise`: words and a table for people, a document for scripts. Owns their wording."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from outpace.cli.comparison import notes_grid
from outpace.cli.simulate_report import column_notes, speedup, standing_json, standing_table
from outpace.observe.trace import Trace
from outpace.simulation.advice import STAY, Advice, possible


def to_json(path: str, trace: Trace, advice: Advice) -> dict[str, Any]:
    """Everything that was found, in plain values."""
    from outpace import __version__

    return {
        "outpace": __version__,
        "trace": path,
        "world": trace.world,
        "ranks_recorded": len(trace.ranks),
        "recorded_strategy": trace.strategy,
        "recommended": None if advice.recommended == STAY else advice.recommended,
        "reasons": list(advice.reasons),
        "now": {**asdict(advice.present), "waiting_share": advice.present.waiting_share},
        "data": advice.standing.scenario.data,
        "possible_speedup": possible(advice.standing),
        **standing_json(advice.standing),
        "if_shared": {"possible_speedup": possible(advice.shared), **standing_json(advice.shared)},
        "skipped": list(advice.skipped),
    }


def print_report(trace: Trace, advice: Advice) -> None:
    """What is now, what each strategy would do, what was not used, and the recommendation last."""
    console = Console(highlight=False, markup=False, emoji=False)
    console.print()
    console.print(_now(trace, advice))
    steps = f"{advice.standing.scenario.steps:,} steps of {trace.world} ranks"
    title = f"the same computing replayed: {steps}, data {advice.standing.scenario.data}"
    others, about_others = _if_shared(advice) if advice.standing.scenario.is_split else ({}, {})
    console.print(standing_table(advice.standing, title, console.width, others))
    console.print(notes_grid({**column_notes(advice.standing), **about_others}))
    for words in advice.skipped:
        console.print(f"left out: {words}", style="yellow", soft_wrap=True)
    console.print()
    stays = advice.recommended == STAY
    console.print(f"Recommendation: {advice.recommended}", style="bold" if stays else "bold green")
    console.print(_list(advice.reasons))


def _if_shared(advice: Advice) -> tuple[dict[str, list[str]], dict[str, str]]:
    """A column of what the data are not, and what it means."""
    gains = [speedup(advice.shared, run) for run in advice.shared.runs]
    about = "speed-up if the data were in one pool, of which whoever is free takes the next mini-batch"
    return {"shared": gains}, {"shared": about}


def _list(sentences: Iterable[str]) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    for sentence in sentences:
        grid.add_row("-", f"{sentence[0].upper()}{sentence[1:]}.")
    return grid


def _now(trace: Trace, advice: Advice) -> str:
    now = advice.present
    return (
        f"{trace.world} ranks under {trace.strategy}: a step takes {_ms(now.step_s)}, of which {_ms(now.compute_s)} "
        f"computing, {_ms(now.waiting_s)} ({now.waiting_share:.0%}) waiting for other ranks and "
        f"{_ms(now.communication_s)} communication; means over ranks and steps. If nobody ever waited for "
        f"another rank, they would be {possible(advice.standing):.2f}x as fast as with allreduce."
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
