"""Between hosts: rounds of outpace beside Gloo's allreduce, on links as fast as the machine and of 1 Gbit/s.

    python -m bench.network > network.json      some minutes; as root, with iproute2; the tables go to standard error

Hosts are network namespaces of this machine, so that the ranks of all of them share its cores: compare ratios, not
seconds. Systems alternate in the same processes on the same links, repeat by repeat.

gloo           `all_reduce` of one vector: times are those of the slowest rank
round          of outpace: contributions lie in the hosts' memory already; until every rank can read the averaged vector
end to end     from each rank's own gradients to the averaged vector, which the optimizer reads in place
round in bf16  the same round with host sums in bfloat16; in int8: with codes of a byte (global-qsgd)
waits          the last rank computes 200 ms each step; what do the steps of the others take beside their computing?
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.figures import Figure, Samples, ratio, spread
from bench.machine import machine
from bench.page import with_spread
from bench.run import Run
from tests.network.commands import NetworkError
from tests.network.launch import Job, torchrun
from tests.network.namespaces import Hosts, why_not

RANK = Path(__file__).parent / "network_ranks.py"
HOSTS, RANKS_PER_HOST = 2, 4
ELEMENTS = 6_553_600  #: of float32: 25 MB
QUICK_ELEMENTS = 262_144
CALLS = 5
RATES: dict[str, float | None] = {"unshaped": None, "1 Gbit/s": 1000.0}  #: of each host's link, in Mbit/s
SYSTEMS = ("gloo", "round", "end to end", "round in bf16", "round in int8")
WAITING, WAITS_ELEMENTS, SLOW_S, WAITS_S = ("gloo", "eager-majority"), 262_144, 0.2, 6.0
QUICK_WAITS_S = 2.0
ANSWER_S = 150.0  #: no question takes as long


class Ranks:
    """The ranks of a job, as somebody to ask."""

    def __init__(self, job: Job, directory: Path) -> None:
        self.hosts, self._job, self._directory = job.hosts, job, directory
        self._asked = 0

    def ask(self, what: str, **details: object) -> list[dict[str, Any]]:
        """What each rank answers, when all have."""
        path = self._directory / f"{self._asked}.json"
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps({"what": what, **details}))
        os.replace(beside, path)
        self._asked += 1
        self._job.until(self._is_answered, f"all ranks have answered to {what} {details}", ANSWER_S)
        return [json.loads(self._job.said(rank).splitlines()[self._asked - 1]) for rank in range(self._job.world)]

    def _is_answered(self) -> bool:
        if all(self._job.said(rank).count("\n") >= self._asked for rank in range(self._job.world)):
            return True
        if any(self._job.codes()):
            raise NetworkError(f"ranks have ended with exit codes {self._job.codes()}\n{self._job.everything()}")
        return False


@contextmanager
def started() -> Iterator[Ranks]:
    """All ranks on all hosts."""
    with Hosts(HOSTS) as hosts:
        questions = hosts.directory / "questions"
        questions.mkdir()
        env = {"PYTHONPATH": str(RANK.parent.parent)}  # a script finds what lies beside it, not the package it is in
        with torchrun(hosts, RANK, str(questions), ranks=RANKS_PER_HOST, env=env, plain_gloo=True) as job:
            ranks = Ranks(job, questions)
            yield ranks
            ranks.ask("end")
            job.wait()


def measure(run: Run) -> dict[str, Any]:
    """Everything, in one run of all ranks."""
    calls = Calls()
    waits: list[dict[str, Any]] = []
    elements, duration_s = (QUICK_ELEMENTS, QUICK_WAITS_S) if run.quick else (ELEMENTS, WAITS_S)
    with run.until_ctrl_c(), started() as ranks:
        calls.prepare(ranks, elements)
        for _ in run.repeats("network"):
            for name, mbit_per_s in RATES.items():
                _shape(ranks.hosts, mbit_per_s)
                for system in SYSTEMS:
                    run.say(f"network: {system}, {name}")
                    calls.add(name, system, ranks)
        _shape(ranks.hosts, None)
        for system in WAITING:
            run.say(f"network: waits of {system}")
            details = {"elements": WAITS_ELEMENTS, "slow_s": SLOW_S, "duration_s": duration_s}
            waits.append(_waits(system, ranks.ask("waits", system=system, **details)))
    return {
        "hosts": HOSTS,
        "ranks": HOSTS * RANKS_PER_HOST,
        "payload_bytes": elements * 4,
        "is_right": calls.is_right,
        "rows": [_row(name, found, calls.link_bytes.by_key[name]) for name, found in calls.seconds.items()],
        "waits": waits,
    }


class Calls:
    """What was measured of calls so far, by link and system."""

    def __init__(self) -> None:
        self.seconds, self.link_bytes = Samples(), Samples()
        self.is_right = True

    def prepare(self, ranks: Ranks, elements: int) -> None:
        for system in SYSTEMS:
            ranks.ask("prepare", system=system, elements=elements)

    def add(self, link: str, system: str, ranks: Ranks) -> None:
        """Seconds of a call for the slowest rank, bytes that left a host for each, and whether the sums were right."""
        before = [host.traffic() for host in ranks.hosts]
        answers = ranks.ask("calls", system=system, times=CALLS)
        sent = max(host.traffic().since(then).sent_bytes for host, then in zip(ranks.hosts, before, strict=True))
        self.link_bytes.add(link, {system: sent / answers[0]["calls"]})
        self.seconds.add(link, {system: max(answer["seconds"] for answer in answers)})
        self.is_right = self.is_right and all(answer["is_right"] for answer in answers)


def _shape(hosts: Hosts, mbit_per_s: float | None) -> None:
    for host in hosts:
        if mbit_per_s is None:
            host.unshape()
        else:
            host.shape(mbit_per_s)


def _row(name: str, seconds: dict[str, list[float]], link_bytes: dict[str, list[float]]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "link": name,
        "seconds": {system: spread(values) for system, values in seconds.items()},
        "link_bytes": {system: spread(values) for system, values in link_bytes.items()},
    }
    row["ratios"] = {system: ratio(seconds["gloo"], seconds[system]) for system in SYSTEMS if system != "gloo"}
    return row


def _waits(system: str, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the ranks that are not slow: how long their steps took, and how many of them as long as waiting does."""
    others, slow = answers[:-1], answers[-1]
    steps = [seconds for answer in others for seconds in answer["step_s"]]
    return {
        "system": system,
        "slow_ms": SLOW_S * 1e3,
        "steps_of_others": spread([answer["steps"] for answer in others]),
        "steps_of_slow": slow["steps"],
        "step_s": spread(steps),
        "waited_share": sum(seconds > SLOW_S / 2 for seconds in steps) / len(steps),
        "late_share": answers[0].get("late_share"),
    }


def tables(figures: dict[str, Any]) -> list[Table]:
    """For people."""
    what = f"{figures['ranks']} ranks on {figures['hosts']} hosts, {figures['payload_bytes'] / 2**20:.3g} MB"
    calls = Table("link", "system", "ms", "MB sent by a host", "times as fast", title=what)
    for row in figures["rows"]:
        for system, found in row["seconds"].items():
            against = "" if system == "gloo" else with_spread(row["ratios"][system], "times")
            calls.add_row(row["link"], system, _text(found, 1e3), _text(row["link_bytes"][system], 1e-6), against)
    waits = Table("system", "steps of the others", "of the slow", "ms in step()", "waited", "late", title="waits")
    for row in figures["waits"]:
        late = "" if row["late_share"] is None else f"{row['late_share']:.0%}"
        counts = (_text(row["steps_of_others"]), str(row["steps_of_slow"]))
        waits.add_row(row["system"], *counts, _text(row["step_s"], 1e3), f"{row['waited_share']:.1%}", late)
    return [calls, waits]


def _text(figure: Figure, unit: float = 1.0) -> str:
    low, median, high = (f"{figure[name] * unit:.3g}" for name in ("low", "median", "high"))
    return f"{median} ({low} to {high})"


def main(given: Sequence[str] | None = None) -> int:
    """The exit code: 2 where hosts cannot be built, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.network", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="how often everything is measured")
    parser.add_argument("--quick", action="store_true", help="small and once, to see that everything works")
    options = parser.parse_args(given)
    reason = why_not()
    if reason is not None:
        print(f"nothing was measured: {reason}", file=sys.stderr)
        return 2
    run = Run(1 if options.quick else options.repeat, options.quick)
    figures = measure(run)
    print(json.dumps({"machine": machine(), "repeat": run.repeat, "quick": run.quick, **figures}, indent=1))
    console = Console(stderr=True, width=120)
    for table in tables(figures):
        console.print(table)
    if not figures["is_right"]:
        console.print("a result is NOT the mean of all gradients", style="red")
    return 130 if run.interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
