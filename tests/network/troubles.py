"""Ranks of several hosts that train while somebody does something to one of them; what it costs, and the account.

Hosts are network namespaces; ranks are started one by one, so that nobody ends the others when one dies. The first
host's agent writes the log for all. That host holds the store, too, unless one more host does. The last host gets into
trouble, or those that are named.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.network.host import Host
from tests.network.launch import Job, plain
from tests.network.namespaces import Hosts
from tests.support.family import Board
from tests.support.host_faults import Driver, agents_of

PROGRAM = Path(__file__).parent / "programs" / "counting.py"
WARM_UP, MORE = 30, 40  #: steps of every rank before the trouble, and of everybody who can after it
ENDED_S = 60.0


@dataclass
class Scene:
    """Hosts, their ranks, and who looks at them."""

    hosts: Hosts
    job: Job
    driver: Driver
    troubled: tuple[int, ...] = ()  #: hosts; none named: the last one

    @property
    def victims(self) -> list[int]:
        """The ranks of the hosts in trouble."""
        each = self.job.ranks_per_host
        return [rank for host in self.victim_hosts for rank in range(host * each, (host + 1) * each)]

    @property
    def victim_hosts(self) -> tuple[int, ...]:
        return self.troubled or (len(self.job.hosts) - 1,)

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.job.world) if rank not in self.victims]

    def agents(self) -> list[int]:
        """Of the hosts in trouble."""
        return agents_of(self.driver.pids(self.victims))

    def reports(self, living: Iterable[int]) -> list[dict[str, Any]]:
        """Ends the training, and returns what these ranks say of it."""
        self.driver.board.end()
        self.job.until(lambda: all(_has_reported(self.job, rank) for rank in living), "all have ended", ENDED_S)
        return [json.loads(self.job.said(rank).splitlines()[-1]) for rank in living]

    def lasting(self, seconds: float) -> None:
        """Lets a fault last so long: its length is what is measured."""
        time.sleep(seconds)


@dataclass
class Outcome:
    """What became of a run with trouble in it."""

    usual_s: float  #: of a step of the others, median before
    pause_s: float  #: their longest step after the trouble began
    recovery_s: float | None  #: from its end until the last of its ranks has completed a step; None if they are gone
    applied: int
    dropped: int  #: recorded with a reason
    lost: int  #: steps of ranks that were never killed and are neither
    doubled: int
    is_agreed: bool  #: all who live had the same bits after every round, and at the end


Trouble = Callable[[Scene], "float | None"]  #: makes it; returns when it was over, None if its ranks are gone


def stop_agent(scene: Scene, seconds: float = 3.0) -> float:
    with scene.driver.stopped(scene.agents()[:1]):
        scene.lasting(seconds)
    return time.monotonic()


def kill_agent(scene: Scene) -> float:
    scene.driver.kill(scene.agents()[:1])
    return time.monotonic()


def kill_agent_and_its_follower(scene: Scene) -> float:
    scene.driver.kill(scene.agents())
    return time.monotonic()


def stop_rank(scene: Scene, seconds: float = 3.0) -> float:
    with scene.driver.stopped(scene.driver.pids(scene.victims[-1:])):
        scene.lasting(seconds)
    return time.monotonic()


def kill_host(scene: Scene) -> None:
    for host in scene.victim_hosts:
        scene.hosts[host].kill()


def kill_host_and_start_it_again(scene: Scene) -> float:
    """Started as soon as it is dead; the time of its start-up is in what is measured."""
    kill_host(scene)
    began = time.monotonic()
    for rank in scene.victims:
        scene.job.start_rank(rank)
    return began


def cut_off(scene: Scene, seconds: float = 5.0) -> float:
    hosts = [scene.hosts[host] for host in scene.victim_hosts]
    for host in hosts:
        host.cut()
    try:
        scene.lasting(seconds)
    finally:
        for host in hosts:
            host.restore()
    return time.monotonic()


def cut_off_from_store(scene: Scene, seconds: float = 5.0) -> float:
    """The other hosts reach it, and it them."""
    return _cut_off_from(scene, [scene.job.store_host], seconds)


def cut_off_from_others(scene: Scene, seconds: float = 5.0) -> float:
    """It reaches the store, and gives signs of life there."""
    others = [host for host in scene.job.hosts if host.index not in scene.victim_hosts]
    return _cut_off_from(scene, others, seconds)


def _cut_off_from(scene: Scene, others: list[Host], seconds: float) -> float:
    hosts = [scene.hosts[host] for host in scene.victim_hosts]
    for host in hosts:
        host.cut_from(others)
    try:
        scene.lasting(seconds)
    finally:
        for host in hosts:
            host.restore()
    return time.monotonic()


@contextmanager
def scene(
    hosts: Hosts,
    ranks: int,
    strategy: str,
    troubled: tuple[int, ...] = (),
    compute_s: float = 0.01,
    timeout_s: float = 20.0,
    store_apart: bool = False,
) -> Iterator[Scene]:
    """Ranks that train, all of them under way. With `store_apart` the last host has no ranks, but the store."""
    board = hosts.directory / "board"
    with suppress(FileNotFoundError):
        board.unlink()
    given = (strategy, str(board), str(compute_s), str(timeout_s))
    env = {"OUTPACE_TOKEN": "of this run"}
    with plain(hosts, PROGRAM, *given, ranks=ranks, env=env, store_apart=store_apart) as job:
        found = Scene(hosts, job, Driver(Board(board), job.world), troubled)
        job.until(lambda: min(found.driver.steps()) >= WARM_UP, "all have begun")
        yield found


def play(
    hosts: Hosts,
    trouble: Trouble,
    ranks: int,
    strategy: str,
    troubled: tuple[int, ...] = (),
    store_apart: bool = False,
) -> Outcome:
    """One run with one trouble in it."""
    with scene(hosts, ranks, strategy, troubled, store_apart=store_apart) as found:
        began = time.monotonic()
        over = trouble(found)
        living = found.others if over is None else list(range(found.job.world))
        found.job.until(_more(found, living), "everybody goes on")
        reports = found.reports(living)
    return _outcome(reports, found, began, over)


def _more(scene: Scene, who: Iterable[int]) -> Callable[[], bool]:
    wanted = {rank: scene.driver.board.steps(rank) + MORE for rank in who}
    return lambda: all(scene.driver.board.steps(rank) >= steps for rank, steps in wanted.items())


def _has_reported(job: Job, rank: int) -> bool:
    said = job.said(rank)
    return said.endswith("\n") and said.splitlines()[-1].startswith("{")


def _outcome(reports: list[dict[str, Any]], scene: Scene, began: float, over: float | None) -> Outcome:
    others = [step for report in reports if report["rank"] in scene.others for step in report["steps"]]
    first, given = reports[0], contributions(reports)
    made = {report["rank"]: len(report["steps"]) for report in reports}
    steps = {rank: count for rank, count in made.items() if count == scene.driver.board.steps(rank)}  # of one life
    counted = Counter((rank, 0 if rank in steps else incarnation, step) for rank, incarnation, step in given)
    dropped = {stats["rank"]: stats["dropped"] for stats in first["ranks"]}
    return Outcome(
        usual_s=median(took for at, took in others if at < began),
        pause_s=max(took for at, took in others if at + took >= began),
        recovery_s=None if over is None else _recovery_s(reports, scene.victims, over),
        applied=sum(first["applied"]),
        dropped=sum(dropped.values()),
        lost=sum(abs(count - first["applied"][rank] - dropped[rank]) for rank, count in steps.items()),
        doubled=sum(count - 1 for count in counted.values()),
        is_agreed=is_agreed(reports),
    )


def _recovery_s(reports: list[dict[str, Any]], victims: list[int], over: float) -> float:
    """Until each of its ranks has completed a step that it had begun, or began, after the trouble was over."""
    ends = [[at + took for at, took in report["steps"]] for report in reports if report["rank"] in victims]
    return max(next(end for end in mine if end >= over) for mine in ends) - over


def contributions(reports: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    rounds = {number: members for report in reports for number, members in report["rounds"].items()}
    return [tuple(member) for members in rounds.values() for member in members]


def is_agreed(reports: list[dict[str, Any]]) -> bool:
    seen: dict[str, set[str]] = {"end": {report["final"] for report in reports}}
    for report in reports:
        for number, found in report["digests"].items():
            seen.setdefault(number, set()).add(found)
    return all(len(found) == 1 for found in seen.values())
