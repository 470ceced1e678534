"""`outpace simulate`: which strategy would be faster on a cluster one describes. Owns its options and their checks."""

from __future__ import annotations

import argparse
import math
from dataclasses import fields
from functools import partial
from typing import Any

from outpace.cli.parser import add_data, add_settings, at_least_one, listing, megabytes, milliseconds, paragraph
from outpace.cli.progress import ShowStep, watcher
from outpace.cli.simulate_report import SYSTEMS, USUAL, Comparison, figure, print_report, to_json
from outpace.engines.virtual.network import NETWORKS, network
from outpace.errors import InvalidRules
from outpace.imbalance import table as imbalance_table
from outpace.simulation import BASELINE, Scenario, Timing, full_round_s, simulate_timing, simulate_training
from outpace.strategies import strategy
from outpace.strategies import table as strategy_table
from outpace.workloads import names as workload_names
from outpace.workloads import workload

DESCRIPTION = """
Runs strategies through a cluster that you describe, in simulated time, and shows which would be faster and who would
wait. Nothing is sent, and without --workload nothing is computed: a step takes what --compute-ms and --imbalance say, a
round what --network makes of --payload-mb (LogGP: latency, overhead and gap per byte, between hosts and inside of
them). The strategies are the very code that trains for real, and so is every decision on who is in which round. On a
cluster (--hosts) what ranks say goes through a store, as with torchrun on several hosts: then its load is shown, too.
"""
EPILOG = "Options go behind the name: --imbalance slow:k=2,factor=3 --network ethernet:gbps=100,ranks_per_host=4"

ABOUT_NETWORKS = {
    "host": "One small machine, in whose memory all ranks meet.",
    "zero": "Communication takes no time.",
    "fixed": "A round takes the same time, whatever its size.",
    "ethernet": "Servers, with Ethernet between them.",
    "infiniband": "Servers, with InfiniBand between them.",
    "cluster": "Ethernet as outpace uses it itself: the log in one of torch's stores, a ring for sums, and rows that "
    "are sent when they are published.",
}
ON_HOSTS = "cluster"  #: the network, unless one asks for another
LONGEST_NS = 2**61  #: of a run: simulated time is counted in 64 bits


def add(commands: Any) -> None:
    """Describes the command."""
    lists = (
        listing("strategies", strategy_table()),
        listing("imbalance models", imbalance_table()),
        listing("networks", ((name, _about_network(name)) for name in NETWORKS)),
    )
    parser = commands.add_parser(
        "simulate",
        help="which strategy would be faster on a cluster you describe",
        description=paragraph(DESCRIPTION),
        epilog="\n\n".join((*lists, paragraph(EPILOG))),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    size = add_settings(
        parser,
        USUAL,
        SYSTEMS,
        ranks="simulated ranks",
        compute="computing of a step, undisturbed",
        strategies=f"what to compare, between commas; {BASELINE} always runs, as the baseline",
        seed="of imbalance and workload",
    )
    size.add_argument(
        "--hosts",
        type=at_least_one,
        metavar="N",
        help=f"instead of --ranks: simulated hosts, each with the network's ranks_per_host; the network is {ON_HOSTS} "
        "unless you say another",
    )
    option = parser.add_argument
    option(
        "--steps",
        type=at_least_one,
        default=USUAL.steps,
        metavar="N",
        help="steps of each rank; on average with --data shared (%(default)s)",
    )
    add_data(parser)
    option("--payload-mb", type=megabytes, default=USUAL.payload_mb, metavar="MB", help="gradients (%(default)g)")
    option("--network", metavar="NAME", help=f"what links the ranks ({USUAL.network}; {ON_HOSTS} with --hosts)")
    option("--apply-ms", type=milliseconds, default=USUAL.apply_ms, metavar="MS", help="optimizer step (%(default)g)")
    known = ", ".join(workload_names())
    option("--workload", metavar="NAME", help=f"also train this in simulated time, and show its loss: {known}")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Simulates one strategy after the other and reports. Blocks; returns the exit code."""
    comparison = _checked(arguments)
    titles = [comparison.title(name) for name in comparison.systems]
    with watcher(titles, comparison.settings.ranks * comparison.settings.steps) as watch:
        comparison.run(watch, partial(_simulate, comparison))
    return comparison.report(arguments.json, to_json, print_report)


def _checked(arguments: argparse.Namespace) -> Comparison:
    """Raises what is wrong before anything runs."""
    scenario = _scenario(arguments)
    asked = list(dict.fromkeys(arguments.strategies or SYSTEMS))
    for name in asked:
        strategy(name).rules(scenario.ranks)
    if arguments.workload is not None:
        workload(arguments.workload, scenario.seed).batch(0, 0, scenario.ranks)
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
    """How many ranks there are, and what links them."""
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
        raise InvalidRules("this would take centuries, more than simulated time can count; make its times smaller")


def _simulate(comparison: Comparison, name: str, show: ShowStep) -> Timing:
    scenario = comparison.settings
    show(0, "simulating")
    comparison.standing.measure()
    _check_length(scenario.steps * max(comparison.standing.compute_s) * 1e9)
    if comparison.workload is None:
        outcome = simulate_timing(name, scenario, lambda done: show(done, ""))
    else:
        task = workload(comparison.workload, scenario.seed)
        outcome = simulate_training(name, scenario, task, lambda done: show(done, ""))
    show(scenario.ranks * scenario.steps, f"{figure(outcome.throughput)} steps/s")
    return outcome


def _about_network(name: str) -> str:
    """With what the name stands for between hosts."""
    given = getattr(NETWORKS[name], "keywords", {})
    options = ", ".join(f"{key}={value:g}" for key, value in given.items() if not key.startswith("host_"))
    return " ".join(filter(None, (ABOUT_NETWORKS.get(name), options)))
