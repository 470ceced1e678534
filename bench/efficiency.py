"""How much of the ideal throughput each strategy keeps under each imbalance, in simulated time.

Ideal is what the ranks would do if nobody ever waited, with one pool of data for all: if they are split, a rank that is
always slow leaves nothing to gain. Communication takes no time here: what is missing was waited or thrown away. A
strategy's steps count only if they were applied.
"""

from __future__ import annotations

from typing import Any

from bench.run import Run
from outpace.imbalance import IMBALANCES
from outpace.simulation import SHARED, Scenario, ideal_throughput, simulate_timing
from outpace.strategies import names

RANKS, STEPS, QUICK_STEPS = 8, 200, 10
NOT_SIMULATED = ("trace",)  #: needs a recording


def measure(run: Run) -> dict[str, Any]:
    """Every registered strategy under every registered imbalance. Simulated time has no spread: one run each."""
    models = [name for name in IMBALANCES if name not in NOT_SIMULATED]
    rows = []
    with run.until_ctrl_c():
        for strategy in names():
            run.say(f"efficiency: {strategy}")
            shares = {model: _share(strategy, model, QUICK_STEPS if run.quick else STEPS) for model in models}
            rows.append({"strategy": strategy, "shares": shares, **_least(shares)})
    return {"ranks": RANKS, "steps": QUICK_STEPS if run.quick else STEPS, "models": models, "rows": rows}


def _share(strategy: str, model: str, steps: int) -> float:
    scenario = Scenario(ranks=RANKS, steps=steps, imbalance=model, network="zero", data=SHARED)
    return simulate_timing(strategy, scenario).throughput / ideal_throughput(scenario)


def _least(shares: dict[str, float]) -> dict[str, Any]:
    """By the model under which it keeps least."""
    worst = min(shares, key=shares.__getitem__)
    return {"worst": worst, "least": shares[worst]}
