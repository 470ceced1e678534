"""What a run is, drawn from its seed. Owns the odds of everything; nothing else in the fuzz draws a random number.

The odds favour what goes wrong: ranks that lag, few kept results, costs of communication that make room for faults.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import NamedTuple

from outpace.simulation import Scenario
from outpace.strategies import Eager

STORM_EVERY = 16  #: one seed in so many is a storm of crashes
POOL_EVERY, POOL_AT = 8, 4  #: in one of so many, ranks draw what they train on from one pool
POINTS = ("", "", "", "depositing", "waiting", "applying", "writing a snapshot")

IMBALANCES = (
    "none",
    "random:k=1,delay_ms=40",
    "skew:step_ms=7",
    "shifting-skew:min_ms=5,max_ms=60",
    "slow:k=1,factor=4",
    "normal:sd_ms=4",
    "lognormal:mean_ms=10,sd_ms=20",
    "gamma:mean_ms=10,sd_ms=5",
    "exponential:mean_ms=15",
    "pareto:min_ms=3,alpha=2",
    "pauses:every=6,pause_ms=150",
    "bursts:factor=5,burst_steps=3,calm_steps=5",
    "lengths:mean_ms=40",
    "rollouts:scale=0.01",
)

NETWORKS = (
    "zero",
    "host",
    "fixed:round_ms=2",
    "fixed:round_ms=20",
    "host:host_gbytes_per_s=0.5",
    "ethernet:ranks_per_host=1",
    "ethernet:ranks_per_host=2,latency_us=2000",
    "infiniband:ranks_per_host=3",
)


class Fault(NamedTuple):
    """Something that happens to a rank, from a time on: at once, or when it comes to a point."""

    at_ms: float
    kind: str  #: pause, crash, poison, huge, echo or attempt
    rank: int
    point: str  #: "" for at once
    after: float  #: how far into the point, from 0 to 1; for an echo, how far back in the log
    lasts_ms: float  #: until it goes on, or is restarted; negative for never


@dataclass(frozen=True)
class ModelPlan:
    """The model and optimizer of all ranks."""

    optimizer: str
    batch_norm: bool
    shy: bool  #: has a parameter that gets no gradient at some steps
    half: bool  #: that parameter is a bfloat16
    max_grad_norm: float | None


@dataclass(frozen=True)
class PoolPlan:
    """The data that ranks draw, if they share them."""

    items: int  #: of an epoch
    epochs: int
    batch: int  #: items of a step
    prefetched: int  #: batches that are drawn before they are used


@dataclass(frozen=True)
class Plan:
    """One run."""

    seed: int
    scenario: Scenario
    strategy: Eager
    model: ModelPlan
    steps: tuple[int, ...]  #: of each rank
    sync_every: int  #: own steps between synchronisations, 0 for none
    joins_ms: tuple[float, ...]
    faults: tuple[Fault, ...]
    pool: PoolPlan | None = None

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.scenario.ranks

    def samples(self, rank: int, step: int) -> float:
        """How many samples a contribution stands for; seldom none."""
        return float((self.seed + 5 * rank + 3 * step) % 7)


def plan_of(seed: int) -> Plan:
    """The run of this seed. What is drawn is what kept seeds mean: new odds go to seeds of their own."""
    plan = _plan(random.Random(seed), seed)
    if seed % POOL_EVERY == POOL_AT:
        return _pooled(random.Random(f"pool {seed}"), plan)
    return _storm(random.Random(f"storm {seed}"), plan) if seed % STORM_EVERY == STORM_EVERY - 1 else plan


def _plan(draw: random.Random, seed: int) -> Plan:
    ranks = draw.choice((1, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7, 8))
    scenario = _scenario(draw, ranks, seed)
    steps = tuple(draw.choice((0, 1, 3, 6, 9, 12, 15)) for _ in range(ranks))
    horizon_ms = max(1, *steps) * (scenario.compute_ms + 10) * 1.2
    return Plan(
        seed=seed,
        scenario=scenario,
        strategy=_strategy(draw, ranks),
        model=_model(draw),
        steps=steps,
        sync_every=draw.choice((0, 0, 0, 2, 5)),
        joins_ms=tuple(draw.choice((0.0, 0.0, 0.0, draw.uniform(0, horizon_ms / 3))) for _ in range(ranks)),
        faults=tuple(sorted(_faults(draw, ranks, horizon_ms))),
    )


def _pooled(draw: random.Random, plan: Plan) -> Plan:
    """Ranks draw until nothing is left. Many of them crash, most of them with something in hand; one never does: when
    all are gone, nobody has the weights."""
    pool = PoolPlan(
        items=draw.choice((3, 10, 25, 40)),
        epochs=draw.choice((1, 2, 2)),
        batch=draw.choice((1, 1, 2, 3)),
        prefetched=draw.choice((0, 0, 1, 3)),
    )
    horizon_ms = pool.items * pool.epochs / plan.ranks * (plan.scenario.compute_ms + 10) * 1.2
    crashes = (
        Fault(draw.uniform(0, horizon_ms), "crash", draw.randrange(plan.ranks), draw.choice(POINTS), draw.random(), t)
        for t in (_never_or_long(draw) for _ in range(draw.randrange(8)))
    )
    survivor = draw.randrange(plan.ranks)
    faults = sorted(f for f in (*plan.faults, *crashes) if (f.kind, f.rank) != ("crash", survivor))
    return replace(
        plan,
        strategy=replace(plan.strategy, min_ranks=1),
        steps=(pool.items * pool.epochs,) * plan.ranks,  # at most
        faults=tuple(faults),
        pool=pool,
    )


def _storm(draw: random.Random, plan: Plan) -> Plan:
    """Ranks crash and come back many times over, where little is kept and applying takes longer than a round."""
    late, staleness, quorum = (
        draw.choice(("carry", "count", "count")),
        draw.choice((1, 1, 2)),
        draw.choice(("solo", "majority")),
    )
    lasts = ((0, 0), (0, 20), (0, 200))
    faults = (
        Fault(
            draw.uniform(0, 1500),
            draw.choice(("crash", "crash", "crash", "pause")),
            draw.randrange(plan.ranks),
            draw.choice(POINTS),
            draw.random(),
            draw.uniform(*draw.choice(lasts)),
        )
        for _ in range(draw.randint(10, 40))
    )
    return replace(
        plan,
        strategy=replace(plan.strategy, late=late, max_staleness=staleness, quorum=quorum, min_ranks=1),
        scenario=replace(
            plan.scenario, compute_ms=draw.choice((1.0, 10.0)), apply_ms=draw.choice((30.0, 100.0, 300.0))
        ),
        steps=tuple(draw.randint(5, 25) for _ in range(plan.ranks)),
        faults=tuple(sorted(faults)),
    )


def _scenario(draw: random.Random, ranks: int, seed: int) -> Scenario:
    return Scenario(
        ranks=ranks,
        compute_ms=draw.choice((1.0, 10.0, 30.0, 100.0)),
        imbalance=draw.choice(IMBALANCES),
        payload_mb=draw.choice((0.001, 1.0, 5.0, 25.0)),
        network=draw.choice(NETWORKS),
        apply_ms=draw.choice((0.0, 0.5, 5.0, 30.0, 100.0)),
        seed=seed,
    )


def _strategy(draw: random.Random, ranks: int) -> Eager:
    names = ("solo", "solo", "majority", "majority", "majority", "full", "auto", "majority-random")
    quorum = draw.choice((*names, draw.randint(1, ranks), draw.choice((0.25, 0.6, 0.9))))
    return Eager(
        quorum=quorum,
        late=draw.choice(("carry", "carry", "carry", "count", "drop")),
        max_staleness=draw.choice((1, 1, 2, 2, 3, 4, 8)),
        normalise=draw.choice(("world", "contributors", "samples")),
        grace=draw.choice((0, 0, 0.001, 0.01, "auto")),
        min_ranks=draw.choice((None, 1, 1, draw.randint(1, ranks))),
        seed=draw.randrange(4),
        repair="discount",  # full weight is the simpler case, and is tried everywhere else
    )


def _model(draw: random.Random) -> ModelPlan:
    return ModelPlan(
        optimizer=draw.choice(("sgd", "sgd", "nesterov", "adamw")),
        batch_norm=draw.random() < 0.4,
        shy=draw.random() < 0.4,
        half=draw.random() < 0.3,
        max_grad_norm=draw.choice((None, None, 0.1, 1.0)),
    )


def _faults(draw: random.Random, ranks: int, horizon_ms: float) -> list[Fault]:
    faults = [_fault(draw, ranks, horizon_ms) for _ in range(draw.choice((0, 1, 2, 3, 4, 6, 9)))]
    return faults + (_calamity(draw, ranks, horizon_ms) if draw.random() < 0.2 else [])


def _fault(draw: random.Random, ranks: int, horizon_ms: float) -> Fault:
    kind = draw.choice(("pause",) * 6 + ("crash",) * 8 + ("poison",) * 3 + ("huge", "echo", "echo", "attempt"))
    at_ms = draw.choice((0.0, *(draw.uniform(0, horizon_ms) for _ in range(7))))
    lasts = _never_or_long(draw) if kind == "crash" else _long(draw)
    return Fault(at_ms, kind, draw.randrange(ranks), draw.choice(POINTS), draw.random(), lasts)


def _calamity(draw: random.Random, ranks: int, horizon_ms: float) -> list[Fault]:
    """One rank stands still, and of the others most crash while it does."""
    at_ms, paused, lasts = draw.uniform(0, horizon_ms), draw.randrange(ranks), _never_or_long(draw)
    pause = Fault(draw.uniform(0, at_ms), "pause", paused, draw.choice(POINTS), draw.random(), 5000.0)
    lost = [rank for rank in range(ranks) if rank != paused and draw.random() < 0.8]
    point = draw.choice(POINTS)
    return [pause, *(Fault(at_ms, "crash", rank, point, draw.random(), lasts) for rank in lost)]


def _never_or_long(draw: random.Random) -> float:
    return -1.0 if draw.random() < 0.35 else _long(draw)


def _long(draw: random.Random) -> float:
    """At once, within a round, about when a death is noticed, or after many rounds."""
    spans = (0, 0), (0, 20), (95, 140), (0, 300), (0, 2000)
    return draw.uniform(*draw.choice(spans))
