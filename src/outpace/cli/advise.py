"""`outpace advise`: what a recorded run loses to waiting, and which strategy would gain most. Owns its options."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from outpace.cli.comparison import column_notes, notes_grid, speedup, standing_json, standing_table, watcher
from outpace.cli.trace import ms
from outpace.observe.reader import read_trace
from outpace.observe.schema import Trace
from outpace.simulation import Scenario, Timing, simulate_timing
from outpace.simulation.advice import COMPARED, STAY, Advice, advise, data_of, possible, replayed
from outpace.simulation.scenario import SHARED
from outpace.version import __version__


def run(arguments: argparse.Namespace) -> int:
    trace = read_trace(arguments.path)
    own = arguments.data or data_of(trace)
    scenario = replayed(trace, own)
    runs = [(name, data) for data in dict.fromkeys((own, SHARED)) for name in COMPARED]
    titles = [name if data == own else f"{name}, data {data}" for name, data in runs]
    with watcher(titles, scenario.ranks * scenario.steps, arguments.quiet) as watch:

        def shown(name: str, replay: Scenario) -> Timing:
            if (name, replay.data) not in runs:  # batches of equal cost, where lengths explain who is slow
                return simulate_timing(name, replay)
            with watch.follow(runs.index((name, replay.data))) as show:
                show(0, "replaying")
                return simulate_timing(name, replay, lambda done: show(done, ""))

        advice = advise(trace, own, shown)
    if arguments.json:
        print(json.dumps(to_json(arguments.path, trace, advice), indent=2))
    else:
        print_report(trace, advice)
    return 0


def to_json(path: str, trace: Trace, advice: Advice) -> dict[str, Any]:
    return {
        "outpace": __version__,
        "trace": path,
        "world": trace.world,
        "ranks_recorded": len(trace.ranks),
        "recorded_strategy": trace.strategy,
        "recommended": None if advice.recommended == STAY else advice.recommended,
        "first": None if advice.first == STAY else advice.first,
        "recommended_data": advice.data,
        "gain": advice.gain,
        "reasons": list(advice.reasons),
        "now": {**asdict(advice.present), "waiting_share": advice.present.waiting_share},
        "data": advice.standing.scenario.data,
        "possible_speedup": possible(advice.standing),
        **standing_json(advice.standing),
        "if_shared": {"possible_speedup": possible(advice.shared), **standing_json(advice.shared)},
        "skipped": list(advice.skipped),
    }


def print_report(trace: Trace, advice: Advice) -> None:
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
    gain = (
        "" if advice.first in (STAY, advice.recommended) else f": {advice.gain:.2f}x as fast as waiting for all is now"
    )
    style = "bold" if advice.first == STAY else "bold green"
    console.print(f"Recommendation: {advice.first}{gain}", style=style)
    console.print(_list(advice.reasons))


def _if_shared(advice: Advice) -> tuple[dict[str, list[str]], dict[str, str]]:
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
        f"{trace.world} ranks under {trace.strategy}: a step takes {ms(now.step_s)}, of which {ms(now.compute_s)} "
        f"computing, {ms(now.waiting_s)} ({now.waiting_share:.0%}) waiting for other ranks and "
        f"{ms(now.communication_s)} communication; means over ranks and steps. If nobody ever waited for "
        f"another rank, they would be {possible(advice.standing):.2f}x as fast as with allreduce."
    )
