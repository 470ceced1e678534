"""Every strategy on handwritten digits: 8 simulated ranks, one random slow rank per step, equal epochs.

    python bench/convergence.py --seeds 3

Prints the test accuracy of each strategy, its distance to allreduce on the same seeds, and the simulated time. Real
models and gradients; only time is simulated. One run takes 3 to 20 s.
"""

from __future__ import annotations

import argparse
import sys
from statistics import fmean, stdev

import torch

from outpace.simulation import BASELINE, SHARED, Scenario, Training, simulate_training
from outpace.strategies import names
from outpace.workloads import Digits

RANKS, EPOCHS, FIRST_SEED = 8, 30, 50  #: seeds from here on were not used to choose the task's settings
IMBALANCE = "random:k=1,delay_ms=200"
#: More than one way to use a name, where its default is meant for other lengths of training.
VARIANTS = ("diloco:every=8", "noloco:every=8", "allreduce:codec=bf16", "allreduce:codec=global-qsgd")
SPARSE = ("allreduce:codec=ok-topk:density=0.1",)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many (%(default)s)")
    parser.add_argument("--strategies", nargs="*", default=[*names(), *VARIANTS, *SPARSE], help="default: all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    baseline = [run(BASELINE, seed) for seed in seeds]
    print("| strategy | accuracy % | against allreduce | worst seed | simulated s |\n| --- | --- | --- | --- | --- |")
    for name in arguments.strategies:
        print(row(name, baseline, baseline if name == BASELINE else [run(name, seed) for seed in seeds]), flush=True)
    return 0


def run(name: str, seed: int) -> Training:
    print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
    task = Digits(seed=seed)
    steps = EPOCHS * task.steps_per_epoch
    scenario = Scenario(ranks=RANKS, steps=steps, imbalance=IMBALANCE, network="zero", data=SHARED, seed=seed)
    return simulate_training(name, scenario, task)


def row(name: str, baseline: list[Training], runs: list[Training]) -> str:
    accuracies = [100 * accuracy(run) for run in runs]
    differences = [100 * (accuracy(a) - accuracy(b)) for a, b in zip(runs, baseline, strict=True)]
    spread = stdev(accuracies) if len(accuracies) > 1 else 0.0
    seconds = fmean(run.seconds for run in runs)
    return (
        f"| `{name}` | {fmean(accuracies):.2f} ± {spread:.2f} | {fmean(differences):+.2f} | {min(differences):+.2f} "
        f"| {seconds:.0f} |"
    )


def accuracy(run: Training) -> float:
    return run.held_out.metric


if __name__ == "__main__":
    sys.exit(main())
