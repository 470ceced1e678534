"""What agents and hosts in trouble cost the others, and what becomes of the work.

    python -m bench.host_faults > host_faults.json   some minutes; as root, with iproute2; the table goes to stderr

Three hosts of two ranks, network namespaces of this machine, eager-majority, 10 ms of computing as a sleep. The last
host gets into trouble, or the first, whose agent writes for all; `timeout_s` is 20, so that a silent host is given up
after 2 s. Where two hosts do, there are five of one rank; where one passes on for others, eleven.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.figures import Figure, spread
from bench.machine import machine
from bench.page import with_spread
from bench.run import Run
from tests.network import troubles
from tests.network.namespaces import Hosts, why_not

HOSTS, RANKS_PER_HOST, STRATEGY = 3, 2, "eager-majority"
LEADER, RELAY, TWO = (0,), (1,), (1, 4)


class Case(NamedTuple):
    """What happens, to which hosts of how many, and whether one more holds the store."""

    trouble: troubles.Trouble
    troubled: tuple[int, ...] = ()
    store_apart: bool = False
    hosts: int = HOSTS
    ranks: int = RANKS_PER_HOST


CASES: dict[str, Case] = {
    "a rank stopped for 3 s": Case(troubles.stop_rank),
    "an agent stopped for 3 s": Case(troubles.stop_agent),
    "an agent killed": Case(troubles.kill_agent),
    "an agent and its follower killed": Case(troubles.kill_agent_and_its_follower),
    "a host killed": Case(troubles.kill_host),
    "a host killed and started again": Case(troubles.kill_host_and_start_it_again),
    "a host cut off for 5 s": Case(troubles.cut_off),
    "the writer's agent stopped for 3 s": Case(troubles.stop_agent, LEADER),
    "the writer's agent killed": Case(troubles.kill_agent, LEADER),
    "the writer cut off for 5 s": Case(troubles.cut_off, LEADER, store_apart=True),
    "the writer cut off from the store for 5 s": Case(troubles.cut_off_from_store, LEADER, store_apart=True),
    "the writer cut off from all hosts but the store for 5 s": Case(troubles.cut_off_from_others, LEADER, True),
    "two hosts killed": Case(troubles.kill_host, TWO, hosts=5, ranks=1),
    "two hosts cut off for 5 s": Case(troubles.cut_off, TWO, hosts=5, ranks=1),
    "two hosts killed and started again": Case(troubles.kill_host_and_start_it_again, TWO, hosts=5, ranks=1),
    "a host that passes on killed": Case(troubles.kill_host, RELAY, hosts=11, ranks=1),
}


def measure(run: Run, names: Sequence[str] = tuple(CASES)) -> dict[str, Any]:
    """Every trouble, repeat by repeat, each in a run of its own."""
    found: dict[str, list[troubles.Outcome]] = {}
    with run.until_ctrl_c():
        for _ in run.repeats("hosts in trouble"):
            for name in names:
                run.say(f"hosts in trouble: {name}")
                found.setdefault(name, []).append(_play(CASES[name]))
    return {"hosts": HOSTS, "ranks": HOSTS * RANKS_PER_HOST, "rows": [_row(name, runs) for name, runs in found.items()]}


def _play(case: Case) -> troubles.Outcome:
    with Hosts(case.hosts + case.store_apart) as hosts:
        return troubles.play(hosts, case.trouble, case.ranks, STRATEGY, case.troubled, case.store_apart)


def _row(name: str, runs: list[troubles.Outcome]) -> dict[str, Any]:
    back = [outcome.recovery_s for outcome in runs if outcome.recovery_s is not None]
    return {
        "trouble": name,
        "usual_s": spread([outcome.usual_s for outcome in runs]),
        "pause_s": spread([outcome.pause_s for outcome in runs]),
        "recovery_s": spread(back) if back else None,
        "applied": sum(outcome.applied for outcome in runs),
        "dropped": sum(outcome.dropped for outcome in runs),
        "lost": sum(outcome.lost for outcome in runs),
        "doubled": sum(outcome.doubled for outcome in runs),
        "is_agreed": all(outcome.is_agreed for outcome in runs),
        "runs": [dataclasses.asdict(outcome) for outcome in runs],
    }


def table(figures: dict[str, Any]) -> Table:
    """For people."""
    columns = ("trouble", "usual step", "longest step of the others", "its ranks are back after")
    found = Table(*columns, "applied", "dropped", "lost", "doubled", "same bits")
    for row in figures["rows"]:
        back = "-" if row["recovery_s"] is None else _ms(row["recovery_s"])
        account = [f"{row[name]:,}" for name in ("applied", "dropped", "lost", "doubled")]
        found.add_row(
            row["trouble"],
            _ms(row["usual_s"]),
            _ms(row["pause_s"]),
            back,
            *account,
            "yes" if row["is_agreed"] else "NO",
        )
    return found


def _ms(figure: Figure) -> str:
    return with_spread(figure, "ms")


def main(given: Sequence[str] | None = None) -> int:
    """The exit code: 1 if anything was lost or doubled, 2 where hosts cannot be built, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.host_faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="how often each trouble is made")
    parser.add_argument("--only", default="", metavar="WORDS", help="troubles whose name has these words")
    options = parser.parse_args(given)
    reason = why_not()
    if reason is not None:
        print(f"nothing was measured: {reason}", file=sys.stderr)
        return 2
    run = Run(options.repeat, quick=False)
    figures = measure(run, [name for name in CASES if options.only in name])
    print(json.dumps({"machine": machine(), "repeat": run.repeat, **figures}, indent=1))
    Console(stderr=True, width=140).print(table(figures))
    if run.interrupted:
        return 130
    return int(any(row["lost"] or row["doubled"] or not row["is_agreed"] for row in figures["rows"]))


if __name__ == "__main__":
    sys.exit(main())
