"""What data that follow speed do to learning: time to target and what is learned, in simulated time.

Real gradients; a step takes as long as its own samples are, and on one rank twice as long if asked. Shared data:
whoever is free takes the next batch. Balanced ones are those of `LengthBalancedBatches`. All train on as many samples.

    python -m bench.data_learning sequences [--slow] [--seeds 3]     the table of docs/results.md
    python -m bench.data_learning code --strategies auto --data both   one row of it, beside what all are compared with
    python -m bench.data_learning sequences --padding                what sorting by length does, as docs/data.md says
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from torch import Tensor

from bench.learning.cells import LEARNING_RATES, MICROBATCHES, NETWORK, SIZES
from bench.learning.runs import Record, quiet
from bench.learning.tasks import Task, schedule
from bench.learning.verdict import mean_curve, seconds_to, target_of
from outpace.data.balanced import PADDING, EqualCosts
from outpace.simulation import Scenario, simulate_training
from outpace.workloads import Workload

OPTIMIZERS = {"sequences": "adam", "code": "adamw"}
#: Where a loss is a mean over samples, batches of few and of many must be weighed; tokens are as many in each.
BALANCED_OPTIONS = {"sequences": "normalise=samples", "code": ""}
STRATEGIES = ("allreduce", "eager-majority", "auto")
DATA = {"split": (False, False), "shared": (True, False), "balanced": (False, True), "both": (True, True)}
PADDINGS = (None, PADDING, 0.02)
SLOW = 2.0


class Dealt(Task):
    """A task whose batches are shared or split, and may be of equal cost."""

    def __init__(self, name: str, seed: int, is_shared: bool, is_balanced: bool, padding: float | None) -> None:
        optimizer = OPTIMIZERS[name]
        super().__init__(name, optimizer, LEARNING_RATES[name, optimizer], seed, in_another_order=False)
        self._is_shared = is_shared
        usual = self.inner.steps_per_epoch
        if is_balanced:
            self.inner = EqualCosts(self.inner, SIZES[name].ranks, name, padding)
        self.steps = round(SIZES[name].steps * self.inner.steps_per_epoch / usual)  #: for as many samples

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        return super().batch(step, rank, world) if self._is_shared else self.inner.batch(step, rank, world)


@dataclass(frozen=True)
class OwnCosts:
    """A step takes as long as its own samples are; the last rank's perhaps longer."""

    task: Workload
    slow: float

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        inputs, _ = self.task.batch(step, rank, world)
        cost = self.task.inner.cost(inputs, inputs) * self.task.inner.size(len(inputs), world)
        return base_s * cost * (self.slow if rank == world - 1 else 1.0)


def trained(
    name: str, strategy: str, data: str, slow: float, seed: int, padding: float | None = PADDING
) -> tuple[Record, Dealt]:
    is_shared, is_balanced = DATA[data]
    options = BALANCED_OPTIONS[name] if is_balanced else ""
    size, task = SIZES[name], Dealt(name, seed, is_shared, is_balanced, padding)
    scenario = Scenario(
        ranks=size.ranks,
        steps=task.steps,
        compute_ms=100.0,
        imbalance=OwnCosts(task, slow),
        network=NETWORK,
        data="shared" if is_shared else "split",
        microbatches=MICROBATCHES,
        seed=seed,
    )
    chosen, cosine = f"{strategy}:{options}".rstrip(":"), schedule(OPTIMIZERS[name], task.steps)
    found = simulate_training(chosen, scenario, task, schedule=cosine, evaluations=size.points)
    curve = [[point.share, point.seconds, point.score.metric] for point in found.curve]
    return {"metric": found.held_out.metric, "curve": curve, "seconds": found.curve[-1].seconds}, task


def table(name: str, slow: float, seeds: int, ways: Sequence[str], strategies: Sequence[str]) -> None:
    """All in comparison with allreduce on data that are split, which comes first."""
    print("| data | strategy | learned | of each seed | to target | times as soon | whole run |\n" + "| --- " * 7 + "|")
    baseline: list[Record] = []
    base_s = 0.0
    for data, strategy in dict.fromkeys([("split", "allreduce"), *product(ways, strategies)]):
        found = [trained(name, strategy, data, slow, seed) for seed in range(seeds)]
        runs, metric = [record for record, _ in found], found[0][1].metric
        baseline = baseline or runs
        final = fmean(run["metric"] for run in runs)
        target = target_of(baseline, fmean(run["metric"] for run in baseline), metric)
        target_s = seconds_to(target, mean_curve(runs), metric)
        base_s = base_s or target_s or 0.0
        reached = ("never", "-") if target_s is None else (f"{target_s:.1f} s", f"{base_s / target_s:.2f}x")
        each = ", ".join(metric.text(run["metric"]) for run in runs)
        cells = (data, strategy, metric.text(final), each, *reached, f"{fmean(r['seconds'] for r in runs):.1f} s")
        print("| " + " | ".join(cells) + " |", flush=True)


def paddings(name: str, seeds: int) -> None:
    print("| padding at most | padding | learned | of each seed |\n" + "| --- " * 4 + "|")
    for padding in PADDINGS:
        found = [trained(name, "allreduce", "balanced", 1.0, seed, padding) for seed in range(seeds)]
        metric, order = found[0][1].metric, found[0][1].inner.order
        each = ", ".join(metric.text(record["metric"]) for record, _ in found)
        mean = metric.text(fmean(record["metric"] for record, _ in found))
        print(f"| {padding} | {order.padded_share(0):.0%} | {mean} | {each} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=OPTIMIZERS)
    parser.add_argument("--slow", action="store_true", help=f"the last rank computes {SLOW:g} times as long")
    parser.add_argument("--padding", action="store_true", help="compare bounds of the padding instead")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    arguments = parser.parse_args()
    quiet()
    if arguments.padding:
        paddings(arguments.workload, arguments.seeds)
    else:
        slow = SLOW if arguments.slow else 1.0
        table(arguments.workload, slow, arguments.seeds, arguments.data, arguments.strategies)


if __name__ == "__main__":
    main()
