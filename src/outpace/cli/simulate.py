"""`outpace simulate`: which strategy would be faster on a cluster one describes. Owns the checks of its options."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outpace.cli.comparison import (
    ShowStep,
    Watcher,
    column_notes,
    figure,
    notes_grid,
    replay,
    standing_json,
    standing_table,
    watcher,
)
from outpace.data.balanced import EqualCosts
from outpace.engines.virtual.network import network
from outpace.errors import InvalidRules
from outpace.race.report.table import counted
from outpace.simulation import BASELINE, Scenario, Standing, Timing, Training, simulate_timing, simulate_training
from outpace.simulation.timing import full_round_s
from outpace.strategies import strategy
from outpace.version import __version__
from outpace.workloads import Workload, workload
from outpace.workloads.base import LOSS

SYSTEMS = (BASELINE, "eager-majority", "eager-solo", "auto")  #: unless one asks for others
USUAL = Scenario(imbalance="random:k=1,delay_ms=200")
ON_HOSTS = "cluster"  #: the network, unless one asks for another
LONGEST_NS = 2**61  #: of a run: simulated time is counted in 64 bits


def run(arguments: argparse.Namespace) -> int:
    comparison = _checked(arguments)
    titles = [comparison.title(name) for name in comparison.systems]
    with watcher(titles, comparison.scenario.ranks * comparison.scenario.steps, arguments.quiet) as watch:
        comparison.run(watch)
    if arguments.json:
        print(json.dumps(to_json(comparison), indent=2))
    else:
        print_report(comparison)
    return 130 if comparison.interrupted else 0


def _checked(arguments: argparse.Namespace) -> Comparison:
    scenario = _scenario(arguments)
    asked = list(dict.fromkeys(arguments.strategies or SYSTEMS))
    for name in asked:
        strategy(name).rules(scenario.ranks)
    if arguments.workload is not None:
        _task(arguments.workload, scenario).batch(0, 0, scenario.ranks)
    is_extra = BASELINE not in asked
    systems = [BASELINE, *asked] if is_extra else asked
    return Comparison(scenario, systems, workload=arguments.workload, baseline_is_extra=is_extra)


def _scenario(arguments: argparse.Namespace) -> Scenario:
    """What the options describe, if it can be simulated."""
    try:
        given = {option.name: getattr(arguments, option.name) for option in fields(Scenario)}
        scenario = Scenario(**{**given, **_size(arguments)})
        compute_ns = max(scenario.compute_ns(rank)(0) for rank in range(scenario.ranks))
        longest_ns = scenario.steps * (compute_ns + full_round_s(scenario) * 1e9 + scenario.apply_ms * 1e6)
    except OverflowError:
        longest_ns = math.inf
    _check_length(longest_ns)
    if scenario.steps == 1 and not scenario.is_split:
        raise InvalidRules(
            "with --data shared --steps 1 there is nothing to measure, because the clock stops when the last step "
            "begins; use --steps 2 or more, or --data split"
        )
    return scenario


def _size(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.hosts is None:
        return {"network": arguments.network or USUAL.network}
    name = arguments.network or ON_HOSTS
    each = network(name).ranks_per_host
    if not each:
        option = "," if ":" in name else ":"
        raise InvalidRules(
            f"--hosts {arguments.hosts} --network {name}: this network has all ranks on one host. Say how many each "
            f"has, as in --network {name}{option}ranks_per_host=8, or leave --hosts out"
        )
    return {"network": name, "ranks": arguments.hosts * each}


def _check_length(longest_ns: float) -> None:
    if longest_ns > LONGEST_NS:
        raise InvalidRules("this would take centuries, more than simulated time can count; use shorter times")


def _task(name: str, scenario: Scenario) -> Workload:
    """In mini-batches of equal cost, if that is asked for."""
    task = workload(name, scenario.seed)
    return EqualCosts(task, scenario.ranks, name) if scenario.is_balanced else task


def _simulate(comparison: Comparison, name: str, show: ShowStep) -> Timing:
    scenario = comparison.scenario
    show(0, "simulating")
    comparison.standing.measure()
    _check_length(scenario.steps * max(comparison.standing.compute_s) * 1e9)
    if comparison.workload is None:
        outcome = simulate_timing(name, scenario, lambda done: show(done, ""))
    else:
        task = _task(comparison.workload, scenario)
        outcome = simulate_training(name, scenario, task, lambda done: show(done, ""))
    show(scenario.ranks * scenario.steps, f"{figure(outcome.throughput)} steps/s")
    return outcome


@dataclass
class Comparison:
    """Strategies in one scenario. The baseline is among them, also when nobody asked for it."""

    scenario: Scenario
    systems: list[str]
    workload: str | None = None
    baseline_is_extra: bool = False
    outcomes: list[Timing] = field(default_factory=list)  #: of those that ran
    interrupted: bool = False

    def run(self, watch: Watcher) -> None:
        """Runs one strategy after the other; Ctrl-C ends the current one and keeps what is there. Blocks."""
        try:
            for index, name in enumerate(self.systems):
                with watch.follow(index) as show:
                    self.outcomes.append(_simulate(self, name, show))
        except KeyboardInterrupt:
            self.interrupted = True

    def command(self) -> str:
        asked = self.systems[1:] if self.baseline_is_extra else self.systems
        others = {} if tuple(asked) == SYSTEMS else {"strategies": ",".join(asked)}
        if self.workload is not None:
            others["workload"] = self.workload
        return replay("simulate", self.scenario, USUAL, **others)

    def title(self, system: str) -> str:
        return f"{system} (baseline)" if system == BASELINE and self.baseline_is_extra else system

    @cached_property
    def standing(self) -> Standing:
        return Standing(self.scenario, self.outcomes)


def to_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "outpace": __version__,
        "command": comparison.command(),
        "settings": asdict(comparison.scenario),
        "interrupted": comparison.interrupted,
        "workload": comparison.workload,
        **standing_json(comparison.standing),
    }


def print_report(comparison: Comparison) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    if comparison.interrupted:
        ran = f"{len(comparison.outcomes)} of {len(comparison.systems)} strategies finished"
        console.print(f"Interrupted: {ran}.", style="yellow")
    if not comparison.outcomes:
        return
    console.print()
    console.print(_table(comparison, console.width))
    notes = _notes(comparison)
    console.print(notes_grid(notes))
    repeat = "repeat".ljust(max(map(len, notes)) + 2)  # not wrapped, so that it can be copied whole
    console.print(Text.assemble((repeat, "bold"), comparison.command()), soft_wrap=True)


def _table(comparison: Comparison, width: int) -> Table:
    s = comparison.scenario
    title = f"{counted(s.ranks, 'rank')}, imbalance {s.imbalance}, network {s.network}"
    losses = [_loss(run) for run in comparison.outcomes if isinstance(run, Training)]
    return standing_table(comparison.standing, title, width, {"loss": losses} if losses else {}, comparison.title)


def _notes(comparison: Comparison) -> dict[str, str]:
    s = comparison.scenario
    notes = {
        "simulation": "time is added up, not waited for; the strategies, and who is in which round, are the code that "
        "trains for real",
        "steps": f"{s.steps:,} by every rank, as data are split by DistributedSampler; measured until the slowest has "
        "made its own (--data shared: one pool for all)"
        if s.is_split
        else f"{s.ranks * s.steps:,} in one pool: whoever is free takes the next; measured until the last one begins",
        **({"batches": "of equal cost: each step of a rank takes its mean"} if s.is_balanced else {}),
        "network": f"a round of all ranks takes {'at least ' if s.links.has_store(s.ranks) else ''}"
        f"{figure(full_round_s(s) * 1000)} ms, for {s.payload_mb:g} MB on {counted(s.links.hosts(s.ranks), 'host')}",
        **({"store": _about_load(comparison)} if s.links.has_store(s.ranks) else {}),
        **column_notes(comparison.standing),
    }
    if comparison.workload is not None:
        notes["loss"] = _about_loss(comparison.workload, s.seed)
    return notes


def _about_load(comparison: Comparison) -> str:
    """What the store and the links have to do, a line for each strategy."""
    links = comparison.scenario.links
    lines = [
        f"the log is in one, which works {links.store_set_us:g} us for an entry; the first host writes it for all, and "
        "what is said and written goes up and down a tree of hosts"
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


def _about_loss(name: str, seed: int) -> str:
    task = workload(name, seed)
    return f"of {name} at the end, on held-out data; {figure(task.score(task.model()).loss)} before training"


def _loss(run: Training) -> str:
    """With the metric, of a task that has another one."""
    other = "" if run.metric == LOSS else f" ({run.metric.text(run.held_out.metric)})"
    return figure(run.held_out.loss) + other
