"""Which learning rate suits each system: a few are tried in simulated time, on a seed that the race does not use.

Ranks take as long as in the race, and what is late there is late here. The time of communication is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from outpace.imbalance import Imbalance, imbalance
from outpace.race.rank import optimizer_of, task_of
from outpace.race.result import Entry, Settings
from outpace.race.systems import system
from outpace.simulation import Scenario, simulate_training
from outpace.workloads import Workload
from outpace.workloads.base import Metric

FACTORS = (0.5, 1.0, 2.0)  #: of the workload's own learning rate
OTHER_SEED = 1000  #: so much further on than the race's first

Tell = Callable[[str], None]  #: hears in words what is tried


def tuned(entry: Entry, settings: Settings, steps: int, metric: Metric, tell: Tell | None = None) -> Entry:
    """With the learning rate that led furthest, and what each did. Blocks for a simulated training of each."""
    tried = []
    for factor in FACTORS:
        if tell is not None:
            tell(f"{entry.title}: trying {factor:g} times the learning rate, in simulated time")
        tried.append((factor, _learned(entry.system, settings, steps, factor)))
    sign = 1 if metric.higher_is_better else -1
    best = max(tried, key=lambda pair: -math.inf if math.isnan(pair[1]) else sign * pair[1])
    return replace(entry, learning_rate=best[0], tried=tuple(tried))


def _learned(name: str, settings: Settings, steps: int, factor: float) -> float:
    """The metric at the end of a simulated training."""
    seed = settings.seed + OTHER_SEED
    task = task_of(settings, seed)
    scenario = Scenario(
        ranks=settings.ranks,
        steps=steps,
        compute_ms=settings.compute_ms or 100.0,
        imbalance=_OwnCosts(task, task.model(), imbalance(settings.imbalance, seed)),
        network="zero",
        microbatches=settings.microbatches,
        seed=seed,
    )
    found = simulate_training(system(name).simulated(), scenario, cast(Workload, _AtRate(task, factor)))
    return float(found.held_out.metric)


@dataclass(frozen=True)
class _OwnCosts:
    """What the imbalance makes of a step that takes as long as its samples ask for, by an untrained model."""

    task: Workload
    model: nn.Module
    imbalance: Imbalance

    @torch.no_grad()
    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        inputs, _ = self.task.batch(step, rank, world)
        cost = self.task.cost(inputs, self.model(inputs)) * self.task.size(len(inputs), world)
        return self.imbalance.compute_s(rank, world, step, base_s * cost)


class _AtRate:
    """A workload with another learning rate."""

    def __init__(self, task: Workload, factor: float) -> None:
        self._task, self._factor = task, factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return optimizer_of(self._task, model, self._factor)
