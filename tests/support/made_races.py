"""Races made by hand: ranks whose computing is drawn from a seed, and rounds that are decided by a quorum of them.

What they record is of the shape that real races have, so that charts can be looked at without running any.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

from outpace.observe.schema import Given, RankTrace, Step, Trace, TracedRound
from outpace.race.result import Attempt, Entry, Losses, Point, Race, RankResult, Settings
from outpace.workloads.base import ACCURACY, LOSS, Metric

MS = 1_000_000
COMMAND = "outpace race --workload digits --ranks 8 --imbalance random:k=1,delay_ms=200 --epochs 8 --repeat 1"
APPLY_NS = 3 * MS


class Run:
    """Rounds of `quorum` ranks: whoever comes after a round was decided goes with the next."""

    def __init__(self, quorum: int, ranks: int = 8, steps: int = 150, seed: int = 0, delay_ms: float = 200) -> None:
        self.draws = random.Random(seed)
        self.ranks, self.delay_ms = ranks, delay_ms
        self.steps: list[list[Step]] = [[] for _ in range(ranks)]
        self.rounds: list[TracedRound] = []
        self.on_time, self.carried = [0] * ranks, [0] * ranks
        self.staleness: Counter[int] = Counter()
        self.begin, self.version = [0] * ranks, [0] * ranks
        self.ready = [self._compute_ns(rank) for rank in range(ranks)]
        while sum(self.staleness.values()) < ranks * steps:
            self._round(len(self.rounds), quorum)

    def _compute_ns(self, rank: int) -> int:
        slow = self.delay_ms if self.draws.random() < (0.3 if rank == 5 else 0.1) else 0
        return int((100 + self.draws.uniform(-8, 8) + slow) * MS)

    def _round(self, number: int, quorum: int) -> None:
        at = sorted(self.ready)[quorum - 1] + 4 * MS
        members = [rank for rank in range(self.ranks) if self.ready[rank] <= at]
        given = []
        for rank in members:
            late = number - self.version[rank]
            step = len(self.steps[rank]) + 1
            given.append(Given(rank, step, self.version[rank]))
            self.steps[rank].append(self._step(rank, step, at, late, number))
            self.staleness[late] += 1
            (self.carried if late else self.on_time)[rank] += 1
            self.begin[rank], self.version[rank] = at + APPLY_NS, number + 1
            self.ready[rank] = self.begin[rank] + self._compute_ns(rank)
        self.rounds.append(TracedRound(number, at, self.ranks, tuple(given), False, recorded_by=members[0]))

    def _step(self, rank: int, number: int, at: int, late: int, round_: int) -> Step:
        waited = (at - self.ready[rank]) / 1e9
        times = self.begin[rank], self.ready[rank], at + APPLY_NS, waited, APPLY_NS / 1e9
        return Step(number, *times, round=round_, version=self.version[rank], late=late)

    @property
    def seconds(self) -> float:
        return max(steps[-1].end_ns for steps in self.steps) / 1e9

    def trace(self, strategy: str) -> Trace:
        ranks = {rank: RankTrace(rank, "here", tuple(steps)) for rank, steps in enumerate(self.steps)}
        return Trace(self.ranks, strategy, 4096, ranks, tuple(self.rounds))

    def results(self) -> tuple[RankResult, ...]:
        applied = sum(self.staleness.values())
        return tuple(
            RankResult(
                rank=rank,
                steps=len(steps),
                samples=32.0 * len(steps),
                seconds=self.seconds,
                computed_s=sum(step.compute_s for step in steps),
                waited_s=sum(step.waited_s for step in steps),
                on_time=self.on_time[rank],
                carried=self.carried[rank],
                share=(self.on_time[rank] + self.carried[rank]) / applied,
            )
            for rank, steps in enumerate(self.steps)
        )


def attempt(name: str, run: Run, seed: int = 0, best: float = 0.962, metric: Metric = ACCURACY) -> Attempt:
    draws = random.Random(f"{name}{seed}")
    work = sum(run.staleness.values()) / (8 * 150)
    curve, losses = [], []
    for index in range(41):
        done = index / 40 * work
        noise = draws.gauss(0, 0.004) * math.exp(-2 * done)
        accuracy = best - (best - 0.1) * math.exp(-5.5 * done) + noise
        loss = 0.13 + 2.2 * math.exp(-5 * done) + 4 * noise
        curve.append(Point(index / 40 * run.seconds, done * 8, loss, loss if metric is LOSS else accuracy))
    for index in range(700):
        done = index / 700 * work
        losses.append(Losses(index / 700 * run.seconds, 0.08 + 2.2 * math.exp(-5 * done) * draws.uniform(0.8, 1.2)))
    return Attempt(
        seed=seed,
        directory=f"{name}/{seed}",
        seconds=run.seconds,
        curve=tuple(curve),
        losses=tuple(losses),
        staleness=tuple(sorted(run.staleness.items())),
        ranks=run.results(),
    )


def entry(
    system: str, title: str, quorum: int, seeds: tuple[int, ...] = (0,), **more
) -> tuple[Entry, dict[str, Trace]]:
    """A system with an attempt for each seed, and their traces by directory."""
    delay = more.pop("delay_ms", 200)
    runs = {seed: Run(quorum, seed=seed, delay_ms=delay) for seed in seeds}
    attempts = tuple(attempt(system, run, seed, **more) for seed, run in runs.items())
    return Entry(system, title, attempts), {
        a.directory: run.trace(system) for a, run in zip(attempts, runs.values(), strict=True)
    }


def race(*made: tuple[Entry, dict[str, Trace]], **changes) -> tuple[Race, dict[str, Trace]]:
    settings = Settings("digits", imbalance="random:k=1,delay_ms=200", epochs=8, compute_ms=100)
    whole = Race(
        settings=settings,
        command=COMMAND,
        metric=ACCURACY,
        entries=tuple(entry for entry, _ in made),
        began="2026-03-04T10:20:30+00:00",
        machine="2 cores of an AMD EPYC 7B13, 8 GB, Linux 6.1, Python 3.11, torch 2.6",
        outpace="0.1.0",
    )
    traces = {directory: trace for _, found in made for directory, trace in found.items()}
    return replace(whole, **changes), traces


def failed(system: str, title: str, why: str = "rank 3 stopped: RuntimeError: out of memory") -> tuple[Entry, dict]:
    return Entry(system, title, (Attempt(0, f"{system}/0", error=why),)), {}


def usual(**changes) -> tuple[Race, dict[str, Trace]]:
    """Six systems of eight ranks; one failed, one ran three times."""
    return race(
        entry("ddp", "torch DDP", 8),
        entry("eager-majority", "eager-majority", 4, best=0.96),
        entry("eager-solo", "eager-solo", 1, best=0.93),
        entry("eager:quorum=adaptive,late=carry", "eager:quorum=adaptive,late=carry", 6, seeds=(0, 1, 2)),
        entry("wagma", "wagma", 7, best=0.955),
        failed("sgp", "sgp"),
        **changes,
    )


def duel(ours: float, theirs: float, **more) -> Race:
    """Two systems whose time to the target is given, and little else: for the words."""
    return Race(
        settings=more.pop("settings", Settings("digits", epochs=2, target=0.9, compute_ms=0)),
        command=COMMAND,
        metric=more.pop("metric", ACCURACY),
        entries=(plain("ddp", theirs, waited=0.48), plain("eager-majority", ours, waited=0.06, late=11)),
        **more,
    )


def plain(system: str, *times: float, waited: float = 0.3, late: int = 0, final: float = 0.95, **more) -> Entry:
    """Attempts that reach accuracy 0.9 at these times, and end a quarter later."""
    attempts = [_plain(system, seed, at, waited, late, final, **more) for seed, at in enumerate(times)]
    return Entry(system, "torch DDP" if system == "ddp" else system, tuple(attempts))


def on_a_busy_machine(attempt: Attempt) -> Attempt:
    """The same, but that its ranks computed longer than they were asked to."""
    return replace(attempt, ranks=tuple(replace(rank, overrun=1.4) for rank in attempt.ranks))


def _plain(system: str, seed: int, at: float, waited: float, late: int, final: float, dropped: int = 0) -> Attempt:
    end = at * 1.25
    ranks = tuple(
        RankResult(r, 50, 800.0, end, end * (1 - waited), end * waited, 50 - late, late, dropped, 0.5) for r in (0, 1)
    )
    curve = (
        Point(0, 0, 2.3, 0.1 if final > 0.6 else 2.3),
        Point(at, 1.6, 0.4, min(0.9, final)),
        Point(end, 2, 0.3, final),
    )
    ages = ((0, 100 - late), (1, late)) if late else ((0, 100),)
    return Attempt(seed, f"{system}/{seed}", end, curve, (), ages, ranks)
