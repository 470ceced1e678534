"""How strategies stand against each other in one scenario. Owns what they are measured by; runs none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from outpace.simulation.run import Timing
from outpace.simulation.scenario import Scenario
from outpace.simulation.timing import ideal_throughput, mean_compute_s

BASELINE = "allreduce"  #: everybody waits for everybody, as DDP does


class Standing:
    """Runs of one scenario. Where a figure cannot be said, because a run took no time, it is NaN or infinite."""

    def __init__(self, scenario: Scenario, runs: Sequence[Timing]) -> None:
        self.scenario = scenario
        self.runs = runs

    def speedup(self, run: Timing) -> float:
        """How many times as much is applied per second as under the baseline. NaN if that did not run."""
        base = next((r.throughput for r in self.runs if r.strategy == BASELINE), math.nan)
        return run.throughput / base

    def share_of_ideal(self, run: Timing) -> float:
        """How much of what the ranks could do if they never waited."""
        return run.throughput / self.ideal

    def fair_part(self, run: Timing) -> float:
        """The slowest rank's contributions, as a part of its even share: 1 if it is heard like the others."""
        return run.share(self.slowest) * self.scenario.ranks

    def measure(self) -> None:
        """Finds now what needs no run: among many ranks it takes seconds, which are missed least before the first."""
        _ = self.ideal, self.slowest

    @cached_property
    def ideal(self) -> float:
        """Steps per second if nobody ever waited and communication cost nothing."""
        return ideal_throughput(self.scenario)

    @cached_property
    def compute_s(self) -> list[float]:
        """How long each rank computes a step, in the mean."""
        return mean_compute_s(self.scenario)

    @cached_property
    def slowest(self) -> int:
        """The rank that computes longest."""
        return max(range(self.scenario.ranks), key=self.compute_s.__getitem__)
