"""How the simulator scales: seconds and memory of timing-only runs, in one process on one core.

    python bench/scale.py            1,024 ranks x 1,000 steps, and the cost of a step from 128 to 4,096 ranks
    python bench/scale.py --quick    a tenth of the steps

Goals: 1,024 x 1,000 under 60 s and 1 GB; the cost grows no faster than ranks x steps x log(ranks).
"""

from __future__ import annotations

import argparse
import math
import resource
import time

from outpace.simulation import Scenario, simulate_timing

STRATEGIES = ("allreduce", "eager-majority")
IMBALANCE = "lognormal:mean_ms=20,sd_ms=30"
WORLDS = (128, 256, 512, 1024, 4096)
STEPS_OF_ALL = 262_144  #: ranks x steps of each world


def seconds(strategy: str, ranks: int, steps: int) -> float:
    """Processor time of one run: what else this machine does is not the simulator's."""
    scenario = Scenario(ranks=ranks, steps=steps, imbalance=IMBALANCE)
    began = time.process_time()
    simulate_timing(strategy, scenario)
    return time.process_time() - began


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    part = 10 if parser.parse_args().quick else 1
    print(f"imbalance {IMBALANCE}, timing only, memory before the first run {peak_mb():.0f} MB (torch)")
    for strategy in STRATEGIES:
        took = seconds(strategy, 1024, 1000 // part)
        print(
            f"{strategy:<16} 1,024 ranks x {1000 // part:,} steps: {took:5.1f} s, peak {peak_mb():.0f} MB", flush=True
        )
    print("\nmicroseconds per rank and step, and that divided by log2(ranks):")
    print(f"{'ranks':>7}" + "".join(f"{name:>28}" for name in STRATEGIES))
    for ranks in WORLDS:
        costs = [
            seconds(name, ranks, STEPS_OF_ALL // part // ranks) / (STEPS_OF_ALL / part) * 1e6 for name in STRATEGIES
        ]
        cells = (f"{cost:>17.1f} / log {cost / math.log2(ranks):>4.2f}" for cost in costs)
        print(f"{ranks:>7,}" + "".join(f"{cell:>28}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
