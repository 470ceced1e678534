"""`make scaling`: how outpace would grow to 1,024 hosts of 8 ranks, in simulated time, into docs/scaling.md.

Only the store and messages between agents are measured, on this machine and in real processes. Everything else is
simulated with what came out there, by the strategy files that train for real. Each strategy runs three times: on the
cluster, on one whose store and agents work in no time, and on ideal links. Between them lies what agents and links
cost. What is measured wants a quiet machine, and what is simulated does not: `--only` makes one of the two.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import agent_messages, results_file, store_ops, store_times
from bench.machine import machine
from bench.page import environment
from bench.run import Run
from outpace.engines.virtual.agents import Load
from outpace.simulation import SHARED, Scenario, Timing, simulate_timing

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "scaling.json", HERE.parent / "docs" / "scaling.md"

STRATEGIES = ("allreduce", "eager-majority", "wagma", "d-psgd", "sgp")
LARGEST = ("eager-majority", "wagma")  #: on more than 256 hosts
EACH = 8  #: ranks of a host
SHOWN = (1, 16, 64, 256, 1024)
#: Computing of a step in ms -> hosts -> steps of a rank. The first is shown in full, of both where they break.
STEPS = {
    100.0: {1: 60, 2: 60, 4: 60, 8: 60, 16: 60, 32: 60, 64: 60, 256: 20, 1024: 5},
    1000.0: {16: 30, 64: 20, 256: 10},
}
SLOWER_TIMES = 3  #: as slow as measured: machines differ, and agents share theirs with the ranks
SLOWER = {64: STRATEGIES, 256: STRATEGIES}
QUICK_SLOWER = {2: LARGEST}
QUICK_STEPS = {100.0: {1: 3, 2: 3, 4: 2}, 1000.0: {2: 2}}
IMBALANCE, PAYLOAD_MB = "lognormal:mean_ms=20,sd_ms=30", 25.0
COMPUTE_MS = tuple(STEPS)
LEAST = 0.9  #: of the throughput; where a part of the cluster leaves less than this, it has broken
FREE_STORE_US = 1e-6  #: too little to be seen, but it is there


def main(given: list[str] | None = None) -> int:
    """Returns the exit code: 130 after Ctrl-C, which leaves the files as they were."""
    arguments = _arguments(given)
    if arguments.render:
        arguments.page.write_text(page(results_file.read(arguments.results)), encoding="utf-8")
        return 0
    run = Run(arguments.repeat, arguments.quick)
    results = {} if arguments.only is None else results_file.read(arguments.results)
    try:
        if arguments.only != "simulated":
            results |= measure(run)
        if arguments.only != "measured":
            results |= simulate(run, results)
    except KeyboardInterrupt:
        return 130
    if run.quick:
        print(page(results))
        return 0
    results_file.write(arguments.results, results)
    arguments.page.write_text(page(results), encoding="utf-8")
    run.say(f"written to {arguments.results.name} and {arguments.page.name}")
    return 0


def measure(run: Run) -> dict[str, Any]:
    """The times of store and messages, and what agents ask of the store. Blocks for some minutes."""
    store = store_times.measure(run)
    messages = agent_messages.measure(run)
    ops = store_ops.measure((2,) if run.quick else store_ops.HOSTS)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return {"machine": machine(), "date": today, "quick": run.quick, "store": store, "ops": ops, "messages": messages}


def simulate(run: Run, measured: dict[str, Any]) -> dict[str, Any]:
    """Every strategy on every number of hosts, with what was measured. Blocks for some minutes."""
    network, rows = _network(measured), []
    for compute_ms, worlds in (QUICK_STEPS if run.quick else STEPS).items():
        for hosts, steps in worlds.items():
            run.say(f"scaling: {hosts} hosts, {compute_ms:g} ms a step")
            rows += [_row(name, hosts, steps, compute_ms, network) for name in (LARGEST if hosts > 256 else STRATEGIES)]
    slower = []
    for hosts, strategies in (QUICK_SLOWER if run.quick else SLOWER).items():
        run.say(f"scaling: {hosts} hosts, {SLOWER_TIMES} times as slow")
        steps = STEPS[COMPUTE_MS[0]][hosts]
        slower += [_row(name, hosts, steps, COMPUTE_MS[0], _network(measured, SLOWER_TIMES)) for name in strategies]
    return {"network": network, "rows": rows, "slower": {"times": SLOWER_TIMES, "rows": slower}}


def _network(measured: dict[str, Any], times: float = 1) -> str:
    """As it was measured, or with a store and agents that are so many times as slow."""
    us = {"store_set_us": measured["store"]["set_s"]["median"] * 1e6}
    us |= {name: measured["messages"][name]["median"] for name in ("send_us", "receive_us")}
    return "cluster:" + ",".join(f"{name}={times * value:.1f}" for name, value in us.items())


def _row(strategy: str, hosts: int, steps: int, compute_ms: float, network: str) -> dict[str, Any]:
    """One strategy on so many hosts; rates are steps per second of one rank."""

    def simulated(links: str) -> Timing:
        size = Scenario(hosts * EACH, steps, compute_ms, IMBALANCE, PAYLOAD_MB, links, data=SHARED)
        return simulate_timing(strategy, size)

    found = simulated(network)
    free = f"cluster:store_set_us={FREE_STORE_US},send_us=0,receive_us=0"
    load = found.load or Load(found.seconds)
    rates = {"rate": found, "free_store_rate": simulated(free), "ideal_rate": simulated("ethernet")}
    return {
        "strategy": strategy,
        "hosts": hosts,
        "steps": steps,
        "compute_ms": compute_ms,
        **{name: timing.throughput / (hosts * EACH) for name, timing in rates.items()},
        "ops_per_round": found.store_ops_per_round,
        "ops_per_s": load.ops_per_s,
        "store_share": load.store_share,
        "link_share": load.link_share,
        "leader_share": load.leader_share,
        "commit_ms": load.commit_s * 1e3,
        "rounds": load.rounds or found.steps / (hosts * EACH),
        "entries": load.entries,
    }


# -- the page ----------------------------------------------------------------------------------------------------------


def page(results: dict[str, Any]) -> str:
    """docs/scaling.md. Everything it says of figures is computed here from those of the run."""
    rows = results["rows"]
    first = [row for row in rows if row["compute_ms"] == COMPUTE_MS[0]]
    shown = {row["hosts"] for row in rows} if results["quick"] else set(SHOWN)
    breaks = [found for ms in COMPUTE_MS for name in STRATEGIES if (found := _breaks(name, ms, rows))["hosts"]]
    template = environment().get_template("scaling.md.j2")
    text = template.render(
        **results,
        shown=[
            {**row, **_relative(row, first)}
            for name in STRATEGIES
            for row in first
            if row["hosts"] in shown and row["strategy"] == name
        ],
        breaks=breaks,
        slowed=[{**row, "share": row["rate"] / row["ideal_rate"]} for row in results["slower"]["rows"]],
        in_short=_in_short(breaks),
        constants={
            "each": EACH,
            "most": max(row["hosts"] for row in rows),
            "imbalance": IMBALANCE,
            "payload_mb": PAYLOAD_MB,
            "least": LEAST,
        },
    )
    return text.strip() + "\n"


def _relative(row: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, float]:
    """Throughput of a rank against one host, and what takes it away: luck of the slowest, links, the store."""
    one = next(r["rate"] for r in rows if (r["strategy"], r["hosts"]) == (row["strategy"], 1))
    return {
        "of_one": row["rate"] / one,
        "ideal_of_one": row["ideal_rate"] / one,
        "links_leave": row["free_store_rate"] / row["ideal_rate"],
        "agents_leave": row["rate"] / row["free_store_rate"],
    }


def _breaks(strategy: str, compute_ms: float, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The first number of hosts at which links or the store leave too little."""
    mine = [row for row in rows if (row["strategy"], row["compute_ms"]) == (strategy, compute_ms)]

    def first(leaves: Callable[[dict[str, Any]], float]) -> int | None:
        return min((row["hosts"] for row in mine if leaves(row) < LEAST), default=None)

    at = {
        "links": first(lambda row: row["free_store_rate"] / row["ideal_rate"]),
        "agents": first(lambda row: row["rate"] / row["free_store_rate"]),
    }
    broken = {name: hosts for name, hosts in at.items() if hosts is not None}
    together = first(lambda row: row["rate"] / row["ideal_rate"])
    what = " and ".join(name for name, hosts in broken.items() if hosts == min(broken.values()))
    if together and together < min(broken.values(), default=math.inf):
        what = "links and agents together"
    simulated = [row["hosts"] for row in mine if row["hosts"] > 1]
    return {
        "strategy": strategy,
        "compute_ms": compute_ms,
        "hosts": simulated,
        **at,
        "together": together,
        "first": what or None,
    }


def _in_short(breaks: list[dict[str, Any]]) -> list[str]:
    """What breaks first, in words: strategies that break alike together."""
    alike: dict[str, list[str]] = {}
    for row in breaks:
        if row["compute_ms"] == COMPUTE_MS[0]:
            at = min((row[part] for part in ("links", "agents", "together") if row[part] is not None), default=None)
            what = "nothing" if at is None else f"{row['first']}, on {at} hosts"
            alike.setdefault(what, []).append(f"`{row['strategy']}`")
    return [f"{what} ({', '.join(names)})" for what, names in alike.items()]


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=(__doc__ or "").partition("\n\n")[2])
    option = parser.add_argument
    option("--repeat", type=int, default=3, metavar="N", help="how often the store is measured (%(default)s)")
    option("--quick", action="store_true", help="few hosts, to see that everything works: writes no file")
    option("--only", choices=("measured", "simulated"), help="this part; the results file has the other one")
    option("--render", action="store_true", help="measure nothing, write the page again from the results")
    option("--results", type=Path, default=RESULTS, metavar="FILE", help="the JSON (bench/scaling.json)")
    option("--page", type=Path, default=PAGE, metavar="FILE", help="the page (docs/scaling.md)")
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())
