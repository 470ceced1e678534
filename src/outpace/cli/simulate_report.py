"""The report of `outpace simulate`: a table for people, a document for scripts. Owns their wording, runs nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from rich import box
from rich.table import Table

from outpace.cli.comparison import ComparisonBase, replay
from outpace.engines.virtual.agents import Load
from outpace.simulation import BASELINE, Scenario, Standing, Timing, Training, full_round_s
from outpace.workloads import workload
from outpace.workloads.base import LOSS

SYSTEMS = (BASELINE, "eager-majority", "eager-solo", "eager:quorum=adaptive")  #: unless one asks for others
USUAL = Scenario(imbalance="random:k=1,delay_ms=200")
WIDE = 100  #: columns of a terminal that has room to spare


@dataclass
class Comparison(ComparisonBase[Scenario, Timing]):
    """Strategies in one scenario. The baseline is among them, also when nobody asked for it."""

    workload: str | None = None
    baseline_is_extra: bool = False

    def command(self) -> str:
        """What repeats this run."""
        others = {}
        asked = self.systems[1:] if self.baseline_is_extra else self.systems
        if tuple(asked) != SYSTEMS:
            others["strategies"] = ",".join(asked)
        if self.workload is not None:
            others["workload"] = self.workload
        return replay("simulate", self.settings, USUAL, **others)

    def title(self, system: str) -> str:
        """What people read for a strategy."""
        return f"{system} (baseline)" if system == BASELINE and self.baseline_is_extra else system

    @cached_property
    def standing(self) -> Standing:
        """How the strategies that ran compare."""
        return Standing(self.settings, self.outcomes)


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Everything that was found, in plain values. What cannot be said is null."""
    return {**comparison.header(), "workload": comparison.workload, **standing_json(comparison.standing)}


def standing_json(standing: Standing) -> dict[str, Any]:
    """How strategies compare, in plain values."""
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
    trained = _trained(run) if isinstance(run, Training) else {}
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
        **trained,
        "ranks": [
            {
                "rank": rank,
                "waited_s": run.waited_s[rank],
                "share": run.share(rank),
                "on_time": tally.on_time,
                "late": tally.carried,
                "dropped": tally.dropped,
            }
            for rank, tally in enumerate(run.tallies)
        ],
    }


def _load_json(run: Timing, load: Load) -> dict[str, Any]:
    return {
        "events": load.events,
        "log_entries": load.entries,
        "lost_races": load.lost,
        "store_ops": load.ops,
        "store_ops_per_round": _finite(run.store_ops_per_round),
        "store_ops_per_s": load.ops_per_s,
        "store_busy_share": load.store_share,
        "busiest_link_share": load.link_share,
        "commit_ms": load.commit_s * 1000,
    }


def print_report(comparison: Comparison) -> None:
    """The table and what its columns mean, on standard output."""
    comparison.print_report("strategies", lambda width: _table(comparison, width), lambda: _notes(comparison))


def _table(comparison: Comparison, width: int) -> Table:
    s = comparison.settings
    title = f"{_count(s.ranks, 'rank')}, imbalance {s.imbalance}, network {s.network}"
    losses = [_loss(run) for run in comparison.outcomes if isinstance(run, Training)]
    return standing_table(comparison.standing, title, width, {"loss": losses} if losses else {}, comparison.title)


def standing_table(
    standing: Standing,
    title: str,
    width: int,
    more: Mapping[str, Sequence[str]],
    name: Callable[[str], str] = str,
) -> Table:
    """How strategies compare, for a terminal of so many columns, with `more` than their timing in the last ones.

    `name` is what people read for a strategy.
    """
    table = Table(
        title=title,
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0) if width >= WIDE else 0,
    )
    table.add_column("strategy", overflow="fold")
    columns = ["steps/s", "speed-up", "ideal", "waited", "late", "stale", "dropped", "share"]
    for column in (*columns, *more):
        table.add_column(column, justify="right", no_wrap=True)
    best = max(standing.speedup(run) for run in standing.runs)
    for run, *last in zip(standing.runs, *more.values(), strict=True):
        style = "bold green" if standing.speedup(run) == best and best > 1 else None
        table.add_row(_folded(name(run.strategy), width), *_cells(standing, run), *last, style=style)
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


def _notes(comparison: Comparison) -> dict[str, str]:
    s = comparison.settings
    notes = {
        "simulation": "time is added up, not waited for; the strategies, and who is in which round, are the code that "
        "trains for real",
        "steps": f"{s.steps:,} by every rank, as data are split by DistributedSampler; measured until the slowest has "
        "made its own (--data shared: one pool for all)"
        if s.is_split
        else f"{s.ranks * s.steps:,} in one pool: whoever is free takes the next; measured until the last one begins",
        "network": f"a round of all ranks takes {'at least ' if s.links.has_store(s.ranks) else ''}"
        f"{figure(full_round_s(s) * 1000)} ms, for {s.payload_mb:g} MB on {_count(s.links.hosts(s.ranks), 'host')}",
        **({"store": _about_load(comparison)} if s.links.has_store(s.ranks) else {}),
        **column_notes(comparison.standing),
    }
    if comparison.workload is not None:
        notes["loss"] = _about_loss(comparison.workload, s.seed)
    return notes


def _about_load(comparison: Comparison) -> str:
    """What the store and the links have to do, a line for each strategy."""
    links = comparison.settings.links
    lines = [
        f"the log is in one, which works {links.store_set_us:g} us for a compare_set and {links.store_get_us:g} us for "
        "a get; every host reads every entry, and who is second to write one tries the next"
    ]
    for run in comparison.outcomes:
        if run.load is not None:
            load = run.load
            lines.append(
                f"{comparison.title(run.strategy)}: {figure(run.store_ops_per_round)} operations a "
                f"{'round' if load.rounds else 'step'}, {figure(load.ops_per_s)}/s; busy {load.store_share:.0%} of the "
                f"time, the busiest link {load.link_share:.0%}; in the log after {figure(load.commit_s * 1000)} ms"
            )
    return "\n".join(lines)


def column_notes(standing: Standing) -> dict[str, str]:
    """What the columns of the table mean."""
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


def _about_loss(name: str, seed: int) -> str:
    task = workload(name, seed)
    return f"of {name} at the end, on held-out data; {figure(task.score(task.model()).loss)} before training"


def _percent(share: float) -> str:
    """Three digits: among many ranks, the share of one is small."""
    return f"{share * 100:.3g}%"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _trained(run: Training) -> dict[str, Any]:
    loss, metric = (_finite(value) for value in run.held_out)
    return {"held_out_loss": loss, f"held_out_{run.metric.name}": metric, "weights": run.weights}


def _loss(run: Training) -> str:
    """With the metric, of a task that has another one."""
    other = "" if run.metric == LOSS else f" ({run.metric.text(run.held_out.metric)})"
    return figure(run.held_out.loss) + other


def _finite(value: float) -> float | None:
    """None for what JSON has no number for: a run that takes no time has no rate, and a loss may diverge."""
    return value if math.isfinite(value) else None
