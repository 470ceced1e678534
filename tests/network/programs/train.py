"""A small model trained for so many steps. The last line of each rank is what became of it, as JSON.

    torchrun --nproc-per-node 2 tests/network/programs/train.py --strategy eager-majority --steps 100

Every step is reported as a line of its own before it is taken, so that whoever watches knows how far a rank is.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import mse_loss

import outpace

FEATURES, BATCH = 32, 16


def main(given: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(given)
    rank = int(os.environ.get("RANK", "0"))
    model, true_weights = _model(options.hidden)
    batches = torch.Generator().manual_seed(rank)
    inner = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    optimizer = outpace.DistributedOptimizer(inner, options.strategy, model, timeout_s=options.timeout_s)
    steps: list[Step] = []
    loss = torch.tensor(float("nan"))
    for number in range(options.steps):
        print(f"step {number}", flush=True)
        time.sleep((options.sleep_ms + (options.slow_ms if rank == options.slow_rank else 0.0)) / 1e3)
        x = torch.randn(BATCH, FEATURES, generator=batches)
        optimizer.zero_grad()
        loss = mse_loss(model(x), x @ true_weights)
        loss.backward()
        steps.append(_timed(number, optimizer.step))
    unfinished = optimizer.stats
    optimizer.finish()
    report = {
        "rank": rank,
        "host": int(os.environ.get("GROUP_RANK", "0")),
        "digest": digest(model, optimizer),
        "loss": loss.item(),
        "steps": len(steps),
        "longest_step": max(steps)._asdict() if steps else None,
        "step_s": [step.seconds for step in steps],
        "stats": dataclasses.asdict(optimizer.stats),
        "stats_before_finish": dataclasses.asdict(unfinished),
    }
    print(json.dumps(report), flush=True)


class Step(NamedTuple):
    """How long `step()` took, and when it was called: to be compared with when a fault was made."""

    seconds: float
    at_s: float  #: since the epoch
    number: int


def _timed(number: int, step: Callable[[], object]) -> Step:
    at_s, began = time.time(), time.perf_counter()
    step()
    return Step(time.perf_counter() - began, at_s, number)


def _model(hidden: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """A model and what it is to learn, the same on all ranks."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1))
    return model, torch.randn(FEATURES, 1) / FEATURES**0.5


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of the bytes of all weights and of the optimizer's whole state."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode() + tensor.numpy().tobytes())
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                found.update(key.encode())
                found.update(value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())
    return found.hexdigest()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--strategy", default="eager-majority")
    option("--steps", type=int, default=50)
    option("--hidden", type=int, default=64, help="width of the model: about 34 parameters each (%(default)s)")
    option("--lr", type=float, default=0.01)
    option("--sleep-ms", type=float, default=0.0, help="computing of every rank, emulated by a sleep")
    option("--slow-rank", type=int, default=-1, help="a rank that computes longer")
    option("--slow-ms", type=float, default=200.0, help="by so much")
    option("--timeout-s", type=float, default=60.0, help="outpace's own")
    return parser


if __name__ == "__main__":
    main()
