"""Simulation against reality: the same scenarios on 8 real ranks of this machine and in simulated time.

Real ranks compute by sleeping as long as the imbalance model says, so that 8 of them fit on a few cores, and then step
for real through shared memory. The simulator gets the same model, and what a step of balanced ranks costs on top of its
computing here, measured first. Compared is the time of a step by the last rank to end.
"""

from __future__ import annotations

import time
from typing import Any

import torch

import outpace
from bench.run import Run
from outpace.job.environment import whereami
from outpace.simulation import Scenario, simulate_timing

RANKS, ELEMENTS = 8, 262_144
STEPS, QUICK_STEPS, COMPUTE_MS = 40, 8, 100.0
SCENARIOS = (
    "none",
    "random:k=1,delay_ms=200",
    "slow:k=1,factor=2",
    "lognormal:mean_ms=40,sd_ms=60",
    "bursts:factor=3,burst_steps=5,calm_steps=20",
)
STRATEGIES = ("allreduce", "eager-majority", "eager-solo")


def measure(run: Run) -> dict[str, Any]:
    """Each scenario once, in both worlds."""
    rows: list[dict[str, Any]] = []
    scenarios = SCENARIOS[:2] if run.quick else SCENARIOS
    steps = QUICK_STEPS if run.quick else STEPS
    cost_ms = 0.0
    with run.until_ctrl_c():
        run.say("reality: what a balanced step costs")
        cost_ms = max(0.0, _real_step_s(_scenario("none", steps, "zero"), "allreduce") * 1e3 - COMPUTE_MS)
        for imbalance in scenarios:
            scenario = _scenario(imbalance, steps, f"fixed:round_ms={cost_ms:.3f}")
            for strategy in STRATEGIES:
                run.say(f"reality: {imbalance}, {strategy}")
                real, simulated = _real_step_s(scenario, strategy), _simulated_step_s(scenario, strategy)
                found = {"real_s": real, "simulated_s": simulated, "off": simulated / real - 1}
                rows.append({"imbalance": imbalance, "strategy": strategy, **found})
    figures = {"ranks": RANKS, "steps": steps, "compute_ms": COMPUTE_MS, "cost_ms": cost_ms, "rows": rows}
    if rows:
        figures["most_off"] = max(abs(row["off"]) for row in rows)
    return figures


def _scenario(imbalance: str, steps: int, network: str) -> Scenario:
    return Scenario(
        ranks=RANKS,
        steps=steps,
        compute_ms=COMPUTE_MS,
        imbalance=imbalance,
        payload_mb=ELEMENTS * 4 / 1e6,
        network=network,
    )


def _simulated_step_s(scenario: Scenario, strategy: str) -> float:
    return simulate_timing(strategy, scenario).seconds / scenario.steps


def _real_step_s(scenario: Scenario, strategy: str) -> float:
    """Seconds of a step, until the last rank's last one."""
    times = outpace.spawn(_real_rank, RANKS, (scenario, strategy))
    return (max(end for _, end in times) - min(begin for begin, _ in times)) / scenario.steps


def _real_rank(scenario: Scenario, strategy: str) -> tuple[float, float]:
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
