"""What commands share that compare systems: what is seen while they run, the command that repeats it, and the table.

Progress goes to standard error: bars on a terminal, plain lines elsewhere.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from outpace.engines.virtual.agents import Load
from outpace.simulation import BASELINE, Standing, Timing, Training, full_round_s

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


#: Told of the steps made, and of what goes with them; before the first step, of what is being done.
ShowStep = Callable[[int, str], None]

WIDE = 100  #: columns of a terminal that has room to spare
NAME_WIDTH = 18  #: of a strategy: no table is so narrow that it cuts this
LINE_EVERY_S = 10.0  #: how often a log gets a line about a run
S = TypeVar("S", bound="DataclassInstance")


class Watcher(Protocol):
    def follow(self, index: int) -> AbstractContextManager[ShowStep]:
        """A context in which system `index` runs; yields the function to call at each of its steps."""


@contextmanager
def watcher(titles: Sequence[str], steps: int, quiet: bool = False) -> Iterator[Watcher]:
    console = Console(stderr=True, quiet=quiet)
    if quiet or not console.is_terminal:
        yield Lines(titles, steps, console)
        return
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", justify="right", markup=False),
        TimeElapsedColumn(),
        console=console,
        expand=True,
    ) as progress:
        yield Bars(titles, steps, progress)


class Bars:
    """One bar for each system; those to come are already there."""

    def __init__(self, titles: Sequence[str], steps: int, progress: Progress) -> None:
        self._progress = progress
        self._tasks = [progress.add_task(title, total=steps, start=False, note=" " * 12) for title in titles]

    @contextmanager
    def follow(self, index: int) -> Iterator[ShowStep]:
        """Moves the bar of this system. Its clock starts with the context, so it includes all that goes before."""
        task = self._tasks[index]
        self._progress.start_task(task)
        yield lambda step, note: self._progress.update(task, completed=step, note=note.rjust(12))
        self._progress.stop_task(task)


class Lines:
    """A line for each thing that begins, one when it ends, and one now and then between: for logs."""

    def __init__(self, titles: Sequence[str], steps: int, console: Console) -> None:
        self._titles, self._steps, self._console = titles, steps, console

    @contextmanager
    def follow(self, index: int) -> Iterator[ShowStep]:
        title, last, said = self._titles[index], "", time.monotonic()

        def show(step: int, note: str) -> None:
            nonlocal last, said
            last = note
            if step == 0:
                self._say(title, note)
            elif time.monotonic() > said + LINE_EVERY_S:
                said = time.monotonic()
                self._say(title, f"{step:,} of {self._steps:,} steps", note)

        yield show
        self._say(title, f"{self._steps:,} steps", last)

    def _say(self, title: str, *words: str) -> None:
        text = f"{title}: {', '.join(filter(None, words))}"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def replay(command: str, settings: S, usual: S, **others: str) -> str:
    """The command line with these settings. What is as usual is left out, except the seed; a tuple comes last."""
    words, last = ["outpace", command], list[str]()
    for option in fields(settings):
        value = getattr(settings, option.name)
        if isinstance(value, tuple):
            last += ["--", *value] if value else []
        elif value != getattr(usual, option.name) or option.name == "seed":
            words += [f"--{option.name.replace('_', '-')}", *([] if value is True else [_typed(value)])]
    for name, text in others.items():
        words += [f"--{name}", text]
    return shlex.join(words + last)


def _typed(value: object) -> str:
    """As one would type it, without rounding."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


class Fitting(Table):
    """On a narrow terminal, columns at the right are left out rather than names cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        name = self.columns[0]
        folds = max(0, self._measure_column(console, options, name).maximum - (name.min_width or 0) - 2)
        while len(self.columns) > 2 and self._widest(console, options) - folds > options.max_width:
            self.columns.pop()
        yield from super().__rich_console__(console, options)

    def _widest(self, console: Console, options: ConsoleOptions) -> int:
        return self.__rich_measure__(console, options.update_width(10 * options.max_width)).maximum


def notes_grid(notes: Mapping[str, str]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True, width=max(map(len, notes)))
    grid.add_column()
    for name, text in notes.items():
        grid.add_row(name, text)
    return grid


# -- strategies compared in simulated time -----------------------------------------------------------------------------


def standing_json(standing: Standing) -> dict[str, Any]:
    slowest, compute_s = standing.slowest, standing.compute_s
    return {
        "baseline": BASELINE,
        "ideal_steps_per_s": _finite(standing.ideal),
        "full_round_ms": full_round_s(standing.scenario) * 1000,
        "mean_compute_ms": fmean(compute_s) * 1000,
        "slowest": {"rank": slowest, "compute_ms": compute_s[slowest] * 1000},
        "fair_share": 1 / standing.scenario.ranks,
        "strategies": [_strategy_json(standing, run) for run in standing.runs],
    }


def _strategy_json(standing: Standing, run: Timing) -> dict[str, Any]:
    return {
        "strategy": run.strategy,
        "steps_per_s": _finite(run.throughput),
        "speedup": _finite(standing.speedup(run)),
        "share_of_ideal": _finite(standing.share_of_ideal(run)),
        "seconds": run.seconds,
        "steps": run.steps,
        "rounds": run.rounds,
        "waited_share": run.waited_share,
        "waited_s": fmean(run.waited_s),
        "late_share": run.late_share,
        "staleness": {
            "p50": run.staleness_of(0.5),
            "p99": run.staleness_of(0.99),
            "max": max(run.staleness, default=0),
            "counts": dict(sorted(run.staleness.items())),
        },
        "dropped_share": 1 - run.applied_share,
        "slowest_share": run.share(standing.slowest),
        "digest": run.digest,
        **({} if run.load is None else {"load": _load_json(run, run.load)}),
        **(_trained(run) if isinstance(run, Training) else {}),
        "ranks": [_rank_json(run, rank) for rank in range(len(run.tallies))],
    }


def _rank_json(run: Timing, rank: int) -> dict[str, Any]:
    tally = run.tallies[rank]
    counts = {"on_time": tally.on_time, "late": tally.carried, "dropped": tally.dropped}
    return {"rank": rank, "waited_s": run.waited_s[rank], "share": run.share(rank), **counts}


def _load_json(run: Timing, load: Load) -> dict[str, Any]:
    return {
        "events": load.events,
        "log_entries": load.entries,
        "store_ops": load.ops,
        "store_ops_per_round": _finite(run.store_ops_per_round),
        "store_ops_per_s": load.ops_per_s,
        "store_busy_share": load.store_share,
        "busiest_link_share": load.link_share,
        "commit_ms": load.commit_s * 1000,
    }


def standing_table(
    standing: Standing, title: str, width: int, more: Mapping[str, Sequence[str]], name: Callable[[str], str] = str
) -> Table:
    """How strategies compare, for a terminal of so many columns, with `more` than their timing in the last ones.

    `name` is what people read for a strategy.
    """
    padding = (0, 1, 0, 0) if width >= WIDE else 0
    table = Fitting(title=title, title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=padding)
    names = [_folded(name(run.strategy), width) for run in standing.runs]
    longest = max(len(line) for each in names for line in each.splitlines())
    table.add_column("strategy", overflow="fold", min_width=min(longest, NAME_WIDTH))
    columns = ["steps/s", "speed-up", "ideal", "waited", "late", "stale", "dropped", "share"]
    for column in (*columns, *more):
        table.add_column(column, justify="right", no_wrap=True)
    best = max(standing.speedup(run) for run in standing.runs)
    for run, shown, *last in zip(standing.runs, names, *more.values(), strict=True):
        style = "bold green" if standing.speedup(run) == best and best > 1 else None
        table.add_row(shown, *_cells(standing, run), *last, style=style)
    return table


def _folded(name: str, width: int) -> str:
    """On a narrow terminal a strategy's options go into lines of their own."""
    return name if width >= WIDE else name.replace(":", ":\n ", 1).replace(",", ",\n ").replace(" (", "\n (")


def _cells(standing: Standing, run: Timing) -> list[str]:
    ideal = standing.share_of_ideal(run)
    return [
        figure(run.throughput),
        speedup(standing, run),
        f"{ideal:.0%}" if math.isfinite(ideal) else "-",
        f"{run.waited_share:.0%}",
        f"{run.late_share:.0%}",
        f"{run.staleness_of(0.5)}/{run.staleness_of(0.99)}/{max(run.staleness, default=0)}",
        f"{1 - run.applied_share:.0%}",
        _percent(run.share(standing.slowest)),
    ]


def speedup(standing: Standing, run: Timing) -> str:
    """Over the baseline; a dash for what cannot be said."""
    gain = standing.speedup(run)
    return f"{gain:.2f}x" if math.isfinite(gain) else "-"


def figure(value: float) -> str:
    """Four digits or more; a dash for what is not finite."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def column_notes(standing: Standing) -> dict[str, str]:
    return {
        "steps/s": "of all ranks together, for steps whose contribution was applied",
        "speed-up": f"of steps/s over {BASELINE}, where every round waits for every rank",
        "ideal": _about_ideal(standing),
        "waited": _about_waited(standing),
        "late": "share of the applied contributions that a later round took in than the one they were computed for",
        "stale": "rounds from computing to applying: half, 99 % and all of the contributions have no more",
        "dropped": "share of the contributions that no round took in",
        "share": _about_share(standing),
    }


def _about_waited(standing: Standing) -> str:
    text = "share of the time that ranks waited for others or for a result, mean over ranks"
    return f"{text}; not for the slowest once they had made all of their steps" if standing.scenario.is_split else text


def _about_ideal(standing: Standing) -> str:
    text = f"share of {figure(standing.ideal)} steps/s: nobody ever waits, communication costs nothing"
    if standing.scenario.is_split:
        text += ", and the slowest rank has as many steps to make as the others"
    if any(standing.share_of_ideal(run) > 1 for run in standing.runs):
        return text + ". More than that is luck: in a short run, ranks do not meet with the same delays"
    return text


def _about_share(standing: Standing) -> str:
    rank, compute_s = standing.slowest, standing.compute_s
    text = f"of rank {rank} in what was applied, where {_percent(1 / len(compute_s))} would be even. "
    longest = f"{figure(compute_s[rank] * 1000)} ms a step"
    if compute_s[rank] == min(compute_s):
        return f"{text}All ranks compute {longest}"
    ratio = compute_s[rank] / fmean(compute_s)
    return f"{text}It is the slowest: it computes {longest} in the mean, {ratio:.2f} times the mean of all"


def _percent(share: float) -> str:
    """Three digits: among many ranks, the share of one is small."""
    return f"{share * 100:.3g}%"


def _trained(run: Training) -> dict[str, Any]:
    loss, metric = (_finite(value) for value in run.held_out)
    return {"held_out_loss": loss, f"held_out_{run.metric.name}": metric, "weights": run.weights}


def _finite(value: float) -> float | None:
    """None for what JSON has no number for: a run that takes no time has no rate, and a loss may diverge."""
    return value if math.isfinite(value) else None
