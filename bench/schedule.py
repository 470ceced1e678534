"""When calls of the skewed micro-benchmark happen. Imports no torch: the ranks of Open MPI use it, too."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

LEAD_S = 0.3  #: until the first iteration, for all ranks to hear of it
LATE_S = 0.002  #: a call that begins so long after its time says that the one before ran into its iteration


class Calls(NamedTuple):
    """Of one rank."""

    latency_s: float  #: mean
    began_late: float  #: share of the calls


@dataclass(frozen=True)
class Schedule:
    """Iterations begin at fixed times on the clock all processes share: no barrier that could cost the call."""

    iterations: int
    period_s: float  #: longer than a call, so that no iteration disturbs the next
    warm_up: int = 16  #: iterations before, which do not count
    skew_s: float = 0.001  #: rank r is late by r times this

    def start(self) -> float:
        """For one rank to say, and all to use."""
        return time.monotonic() + LEAD_S

    def run(self, call: Callable[[], object], rank: int, start: float) -> Calls:
        """Calls at the times of this rank. Blocks until the last call is over."""
        taken, late = [], 0
        for iteration in range(self.warm_up + self.iterations):
            due = start + iteration * self.period_s + rank * self.skew_s
            time.sleep(max(0.0, due - time.monotonic()))
            began = time.monotonic()
            call()
            if iteration >= self.warm_up:
                taken.append(time.monotonic() - began)
                late += began - due > LATE_S
        return Calls(statistics.fmean(taken), late / len(taken))
