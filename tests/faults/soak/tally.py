"""Totals of a soak, and how they are printed."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.faults.soak.checks import rounds_unseen
from tests.faults.soak.episode import Episode
from tests.faults.soak.waits import Waits


@dataclass
class Tally:
    """What has happened so far."""

    began_s: float = field(default_factory=time.monotonic)
    jobs: int = 0
    counted: int = 0  #: jobs whose weights were compared with the records of all their rounds
    rounds: int = 0
    contributions: int = 0
    kills: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})  #: by whether ranks were forked
    stops: int = 0
    missed: int = 0
    interrupts: int = 0
    unclean: int = 0  #: interrupts after which something was wrong
    wrong_sums: int = 0
    violations: int = 0  #: of anything else
    hangs: int = 0
    leftovers: int = 0
    waits: dict[bool, Waits] = field(default_factory=lambda: {True: Waits(), False: Waits()})

    def add(self, episode: Episode, waits: Waits) -> None:
        """Counts one job that was disturbed."""
        forked = episode.plan.is_forked
        self.jobs += 1
        self.counted += not episode.hang and episode.job.code == 0 and not rounds_unseen(episode.job)
        self.kills[forked] += sum(fault.kind == "kill" for fault in episode.faults)
        self.stops += sum(fault.kind == "stop" for fault in episode.faults)
        self.missed += episode.missed
        rounds = {number: found for life in episode.job.all_lives() for number, (found, _) in life.rounds.items()}
        self.rounds += len(rounds)
        self.contributions += sum(map(len, rounds.values()))
        self.waits[forked].add(waits)

    @property
    def is_clean(self) -> bool:
        return not (self.wrong_sums or self.violations or self.hangs or self.leftovers or self.unclean)

    @property
    def line(self) -> str:
        """Where it stands."""
        return (
            f"{time.monotonic() - self.began_s:5.0f} s: {self.jobs} jobs, {sum(self.kills.values())} kills, "
            f"{self.stops} stops, {self.interrupts} interrupts; wrong sums {self.wrong_sums}, other violations "
            f"{self.violations + self.unclean}, hangs {self.hangs}, leftovers {self.leftovers}"
        )

    def summary(self) -> str:
        """All figures."""
        seconds = time.monotonic() - self.began_s
        kills = sum(self.kills.values())
        lines = [
            f"{self.jobs} jobs in {seconds:.0f} s, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
            f"  {kills} kills ({self.kills[True]} of forked ranks, {self.kills[False]} of ranks that start anew), "
            f"{self.stops} stops, {self.missed} that did not happen and are not counted",
            f"  {self.rounds} rounds, {self.contributions} contributions; weights compared with the records of all "
            f"rounds in {self.counted} jobs",
            f"  wrong sums {self.wrong_sums}, other violations {self.violations}, hangs {self.hangs}, "
            f"leftovers {self.leftovers}",
            f"  interrupts clean {self.interrupts - self.unclean} of {self.interrupts}",
        ]
        for forked, name in ((True, "ranks that are forked"), (False, "ranks that start anew")):
            lines += _figures(name, self.waits[forked], self.kills[forked] / (seconds / 60))
        return "\n".join(lines)


def _figures(name: str, waits: Waits, kills_per_minute: float) -> list[str]:
    if not waits.in_fault:
        return []
    kept = "-" if waits.rate_kept is None else f"{waits.rate_kept:.1%}"
    return [
        f"{name}: {'':14} {'p50':>9} {'p99':>9} {'max':>9}  ms",
        _row("step while nothing is wrong", waits.in_step),
        _row("longest step of others, per fault", waits.in_fault),
        _row("beyond an undisturbed step", waits.extra),
        _row("missing after a kill, less start-up", waits.recovery),
        _row("its own start-up", waits.start_up),
        f"  rate that others keep while a rank is stopped: {kept} ({waits.stopped_s:.0f} s of ranks); "
        f"{kills_per_minute:.0f} kills a minute of the whole soak",
    ]


def _row(name: str, values: Sequence[float]) -> str:
    shown = [f"{1e3 * share_of(values, share):9.1f}" for share in (0.5, 0.99, 1.0)]
    return f"  {name:35} {' '.join(shown)}  of {len(values)}"


def share_of(values: Sequence[float], share: float) -> float:
    """The value that so many are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
