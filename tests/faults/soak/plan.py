"""What a job of the soak is and how it is disturbed: a function of the seed and the job's number.

The plan is the same in every replay; where in a rank's code a fault hits is not, as that depends on the machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

STRATEGIES = (
    "eager:quorum=majority,normalise=sum",
    "eager:quorum=solo,normalise=sum",
    "eager:quorum=majority,normalise=sum,max_staleness=3",
    "eager:quorum=2,late=count,normalise=sum",
)
PADDINGS = (0, 200_000)  #: the latter makes the vector several chunks long


@dataclass(frozen=True)
class Plan:
    """One job."""

    number: int
    seed: int
    ranks: int
    strategy: str
    padding: int
    seconds: float  #: for which it is disturbed
    is_forked: bool  #: ranks are forked from a process that has imported everything
    gap_s: float  #: mean time between two faults
    kills: float  #: share of kills among the faults

    def draws(self) -> random.Random:
        """For the faults."""
        return random.Random(f"{self.seed}/{self.number}/faults")


def plan_of(seed: int, number: int, ranks: int, seconds: float) -> Plan:
    """Every sixth job starts its ranks as `outpace run` does, which takes seconds of computing for each restart."""
    draws = random.Random(f"{seed}/{number}/plan")
    is_forked = number % 6 != 5
    return Plan(
        number=number,
        seed=seed,
        ranks=ranks,
        strategy=draws.choice(STRATEGIES),
        padding=draws.choice(PADDINGS),
        seconds=seconds,
        is_forked=is_forked,
        gap_s=0.08 if is_forked else 1.5,
        kills=0.5,
    )
