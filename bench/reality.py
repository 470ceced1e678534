"""Simulation against reality: the same scenarios on 8 real ranks of this machine and in simulated time.

    python bench/reality.py

Real ranks compute by sleeping as long as the imbalance model says, so that 8 of them fit on a few cores, and then step
for real through shared memory. The simulator gets the same model, and what a step of balanced ranks costs on top of its
computing here, measured first. Shown is the time of a step by the last rank to end; the goal is 10 %.
"""

from __future__ import annotations

import argparse
import time

import torch

import outpace
from outpace.environment import whereami
from outpace.simulation import Scenario, simulate_timing

RANKS, ELEMENTS, GOAL = 8, 262_144, 0.10
SCENARIOS = (
    "none",
    "random:k=1,delay_ms=200",
    "slow:k=1,factor=2",
    "lognormal:mean_ms=40,sd_ms=60",
    "bursts:factor=3,burst_steps=5,calm_steps=20",
)
STRATEGIES = ("allreduce", "eager-majority", "eager-solo")


def real_rank(scenario: Scenario, strategy: str) -> tuple[float, float]:
    """(when this rank began, when its last step ended) on the clock all processes share."""
    weight = torch.nn.Parameter(torch.zeros(ELEMENTS))
    weight.grad = torch.ones(ELEMENTS)
    compute_ns = scenario.compute_ns(whereami().rank)
    optimizer = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1e-3), strategy)
    for _ in range(3):  # first use of memory and kernels
        optimizer.step()
    optimizer.synchronize()
    began = time.monotonic()
    for step in range(scenario.steps):
        time.sleep(compute_ns(step) / 1e9)
        optimizer.step()
    ended = time.monotonic()
    optimizer.finish()
    return began, ended


def real_step_s(scenario: Scenario, strategy: str) -> float:
    """Seconds of a step, until the last rank's last one."""
    times = outpace.spawn(real_rank, RANKS, (scenario, strategy))
    return (max(end for _, end in times) - min(begin for begin, _ in times)) / scenario.steps


def simulated_step_s(scenario: Scenario, strategy: str) -> float:
    """The same, simulated."""
    return simulate_timing(strategy, scenario).seconds / scenario.steps


def scenario_of(imbalance: str, arguments: argparse.Namespace, network: str) -> Scenario:
    return Scenario(
        ranks=RANKS,
        steps=arguments.steps,
        compute_ms=arguments.compute_ms,
        imbalance=imbalance,
        payload_mb=ELEMENTS * 4 / 1e6,
        network=network,
        own_steps=True,
        seed=arguments.seed,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--compute-ms", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    balanced = scenario_of("none", arguments, "zero")
    cost_ms = real_step_s(balanced, "allreduce") * 1e3 - arguments.compute_ms
    print(f"{RANKS} ranks, {arguments.steps} steps of {arguments.compute_ms:g} ms, {ELEMENTS * 4 / 1e6:.1f} MB")
    print(f"communication cost of a balanced step, measured: {cost_ms:.2f} ms\n")
    print(f"{'imbalance':<46}{'strategy':<16}{'real':>9}{'simulated':>11}{'off by':>8}")
    worst = 0.0
    for imbalance in SCENARIOS:
        scenario = scenario_of(imbalance, arguments, f"fixed:round_ms={max(0.0, cost_ms):.3f}")
        for strategy in STRATEGIES:
            real, simulated = real_step_s(scenario, strategy), simulated_step_s(scenario, strategy)
            off = simulated / real - 1
            worst = max(worst, abs(off))
            print(
                f"{imbalance:<46}{strategy:<16}{real * 1e3:>6.1f} ms{simulated * 1e3:>8.1f} ms{off:>+8.1%}", flush=True
            )
    print(f"\nlargest difference {worst:.1%}; goal {GOAL:.0%}: {'reached' if worst <= GOAL else 'MISSED'}")


if __name__ == "__main__":
    main()
