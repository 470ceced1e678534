"""How many contributions grace keeps from becoming stale, with as many balanced ranks as there are cores.

    python bench/grace.py [--ranks CORES] [--steps 300] [--compute-ms 10]

Every rank computes the same: a sleep of `--compute-ms` (emulated accelerator time) and a small real gradient. Without
grace, whoever comes a moment after the first is late, and stays out of step; with it, most rounds have everybody.
"""

from __future__ import annotations

import argparse
import os
import time

import torch

import outpace


def train(strategy: str, steps: int, compute_s: float) -> tuple[int, int, int, float]:
    """(rounds, contributions, late ones, seconds) of one run."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    opt = outpace.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), strategy, model)
    began = time.perf_counter()
    for _ in range(steps):
        opt.zero_grad()
        model(torch.randn(32, 64)).pow(2).mean().backward()
        time.sleep(compute_s)
        opt.step()
    opt.finish()
    seconds = time.perf_counter() - began
    ranks = opt.stats.ranks
    late = sum(r.carried + r.dropped for r in ranks)
    return opt.stats.round, late + sum(r.on_time for r in ranks), late, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=max(2, os.cpu_count() or 2))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--compute-ms", type=float, default=10.0)
    args = parser.parse_args()
    print(f"eager-solo, {args.ranks} balanced ranks, {args.steps} steps of {args.compute_ms:g} ms (emulated)")
    for label, strategy in (("0", "eager-solo:grace=0"), ("auto", "eager-solo")):
        runs = outpace.spawn(train, args.ranks, (strategy, args.steps, args.compute_ms / 1e3))
        rounds, given, late, seconds = runs[0]
        share = f"{late} of {given} contributions stale ({late / given:.0%})"
        print(f"  grace {label:4}  {share}, {rounds} rounds, {seconds:.2f} s", flush=True)


if __name__ == "__main__":
    main()
