"""Which combinations of workload, optimizer, imbalance and learning rate are measured. Owns the choice.

All of them would be some 400. What is left out: optimizers that a workload is hardly trained with, learning rates other
than the best under most imbalances, a rank that stands still where it would miss half of a training, and most cells of
the networks that take longest, so that all strategies that carry late work are measured in an hour of one core.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

NETWORK = "zero"  #: time is computing and waiting alone
MICROBATCHES = 4  #: for strategies that may end a round between two of them


@dataclass(frozen=True)
class Size:
    """How long a workload is trained here: one run takes some seconds of processor time."""

    ranks: int
    steps: int  #: of each rank
    points: int = 20  #: of the curve


@dataclass(frozen=True)
class Cell:
    """One combination. Everything that its runs depend on, besides strategy and seed."""

    name: str  #: workload/optimizer/imbalance/times allreduce's best learning rate
    workload: str
    optimizer: str
    imbalance: str
    learning_rate: float
    ranks: int
    steps: int
    points: int
    compute_ms: float = 100.0

    @property
    def alike(self) -> tuple[str, str, float, int]:
        """Of cells that are one under allreduce, which waits for everybody, whoever is late: but for rounding."""
        return self.workload, self.optimizer, self.learning_rate, self.steps


SIZES = {
    "digits": Size(ranks=8, steps=240),
    "vision": Size(ranks=4, steps=128, points=12),
    "sequences": Size(ranks=8, steps=160),
    "code": Size(ranks=4, steps=96, points=10),
    "rollouts": Size(ranks=4, steps=160),
    "hyperplane": Size(ranks=4, steps=64),
    "sines": Size(ranks=4, steps=200),
}

#: Allreduce's best, found on other seeds by `python -m bench.learning --tune --seeds 2`, which asks for a quarter to
#: four times of each: none of them is at an end of what was tried.
LEARNING_RATES: dict[tuple[str, str], float] = {
    ("digits", "sgd"): 0.2,
    ("digits", "adam"): 0.02,
    ("vision", "sgd"): 0.05,
    ("vision", "adam"): 0.005,
    ("sequences", "adam"): 0.04,
    ("sequences", "adamw"): 0.08,
    ("code", "adamw"): 0.04,
    ("rollouts", "adam"): 0.02,
    ("hyperplane", "sgd"): 0.005,
    ("sines", "sgd"): 0.005,
    ("sines", "adam"): 0.004,
    ("sines", "adamw"): 0.004,
}

#: (workload, optimizer) -> imbalances, each with factors of the learning rate where that is not 1 alone.
CHOSEN: dict[tuple[str, str], str] = {
    ("digits", "sgd"): "none jitter random:0.5,1,2 slow:1,2 pareto stopped",
    ("digits", "adam"): "none random:1,2 slow stopped",
    ("vision", "sgd"): "random",
    ("vision", "adam"): "random slow",
    ("sequences", "adam"): "none lengths:0.5,1,2 slow",
    ("sequences", "adamw"): "lengths pareto",
    ("code", "adamw"): "own slow",
    ("rollouts", "adam"): "none rollouts:1,2 random",
    ("hyperplane", "sgd"): "none random:1,2 slow",
    ("sines", "sgd"): "none jitter random:0.5,1,2 slow:1,2 pareto stopped",
    ("sines", "adam"): "random slow",
    ("sines", "adamw"): "none random:0.5,1,2 pareto",
}
FACTORS = {"0.5": 0.5, "1": 1.0, "2": 2.0}

#: What LEARNING of version 0.1.0 was first seen to suffer in; at learning rates of its own, and no part of the verdict.
TABLE_A = "table-a"
TABLE_A_RATES = (0.0025, 0.005, 0.01, 0.02)
TABLE_A_STEPS, TABLE_A_COMPUTE_MS, TABLE_A_WORST = 300, 20.0, 1.1

#: Some minutes: each imbalance, optimizer and workload that can fail, on fewer seeds.
QUICK = ("digits/sgd/random/x1", "sequences/adam/lengths/x1", "rollouts/adam/rollouts/x1", "sines/*/random/x1")
QUICK_SEEDS = 2

#: At their defaults, if they exist. All others by `--strategies`.
STRATEGIES = (
    *("allreduce", "auto", "eager-majority", "eager-solo", "nonblocking", "ringmaster"),
    *("wagma", "ad-psgd", "d-psgd", "sgp", "local-sgd"),
)
#: What must learn as allreduce does: `--check` fails if it does not.
CHECKED = ("auto", "eager-majority", "eager-solo", "nonblocking")
SEEDS = 5
FIRST_SEED, FIRST_SEED_OF_TUNING = 3, 100  #: those before had a part in choosing defaults (decisions 16, 23, 24)


def cells() -> list[Cell]:
    """All that the verdict rests on."""
    return [cell for (workload, optimizer), chosen in CHOSEN.items() for cell in _of(workload, optimizer, chosen)]


def table_a() -> list[Cell]:
    """The same network and imbalance at four learning rates."""
    size = SIZES["sines"]
    return [
        Cell(
            name=f"{TABLE_A}/{rate:g}",
            workload="sines",
            optimizer="sgd",
            imbalance="random-200",
            learning_rate=rate,
            ranks=size.ranks,
            steps=TABLE_A_STEPS,
            points=size.points,
            compute_ms=TABLE_A_COMPUTE_MS,
        )
        for rate in TABLE_A_RATES
    ]


def picked(patterns: Sequence[str]) -> list[Cell]:
    """Cells whose name, or the beginning of it up to a slash, a pattern fits."""
    return [cell for cell in (*cells(), *table_a()) if any(fits(cell.name, pattern) for pattern in patterns)]


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern is of this cell, or of some it is among."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*")


def _of(workload: str, optimizer: str, chosen: str) -> Iterator[Cell]:
    size = SIZES[workload]
    for imbalance, _, factors in (part.partition(":") for part in chosen.split()):
        for factor in (factors or "1").split(","):
            yield Cell(
                name=f"{workload}/{optimizer}/{imbalance}/x{factor}",
                workload=workload,
                optimizer=optimizer,
                imbalance=imbalance,
                learning_rate=LEARNING_RATES[workload, optimizer] * FACTORS[factor],
                ranks=size.ranks,
                steps=size.steps,
                points=size.points,
            )
