"""What data-parallel training adds to a training step when nobody is slow: torch's DDP beside outpace.

Measured from the beginning of the backward pass to the end of `optimizer.step()`, as a mean over steps and ranks. The
plain optimizer steps in just as many processes at the same time, without communication: what the cores and the memory
must do anyway. The model is as cheap as can be: a dot product for each of its parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

import outpace
from bench.bare import join_gloo
from bench.figures import Samples, mean, ratio, spread
from bench.run import Run

TENSORS = 160
MODELS = {"1 M": 1_000_000, "25 M": 25_000_000}  #: parameters
WORLDS = (2, 4)
STEPS, WARM_UP = {"1 M": 60, "25 M": 12}, 12
OUR_WARM_UP = 16  #: for each rank: see bench/bare.py
OURS = ("allreduce", "eager-majority")


class Dots(torch.nn.Module):
    """A gradient for every parameter, at the least cost."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        size = parameters // TENSORS
        self.weights = torch.nn.ParameterList(torch.zeros(size) for _ in range(TENSORS))
        self.constant = torch.ones(size)

    def forward(self) -> torch.Tensor:
        return torch.stack([torch.dot(weight, self.constant) for weight in self.weights]).sum()


def measure(run: Run) -> dict[str, Any]:
    """Both models in both worlds."""
    samples = Samples()
    models, worlds = (("1 M",), (2,)) if run.quick else (tuple(MODELS), WORLDS)
    with run.until_ctrl_c():
        for _ in run.repeats("step overhead"):
            for model in models:
                for ranks in worlds:
                    run.say(f"step overhead: {ranks} ranks, {model} parameters")
                    samples.add((model, ranks), mean(outpace.spawn(_systems, ranks, (MODELS[model], STEPS[model]))))
    return {"tensors": TENSORS, "rows": [_row(model, ranks, found) for (model, ranks), found in samples.items()]}


def _systems(parameters: int, steps: int) -> dict[str, float]:
    """In each rank: one system after the other."""
    join_gloo()
    return {name: _trained(name, Dots(parameters), steps) for name in ("plain", "ddp", *OURS)}


def _trained(name: str, model: torch.nn.Module, steps: int) -> float:
    """Seconds from the backward pass to the end of the optimizer's step."""
    optimizer: Optimizer = SGD(model.parameters(), lr=1e-6)
    if name == "ddp":
        model = DistributedDataParallel(model)  # its group lives as long as the process: torch hangs otherwise
    elif name != "plain":
        optimizer = outpace.DistributedOptimizer(optimizer, name, model)
    for _ in range(OUR_WARM_UP * dist.get_world_size() if name in OURS else WARM_UP):
        _step_s(model, optimizer)
    seconds = sum(_step_s(model, optimizer) for _ in range(steps)) / steps
    finish: Callable[[], None] = getattr(optimizer, "finish", lambda: None)
    finish()
    dist.barrier()
    return seconds


def _step_s(model: torch.nn.Module, optimizer: Optimizer) -> float:
    optimizer.zero_grad()
    loss = model()
    began = time.perf_counter()
    loss.backward()
    optimizer.step()
    return time.perf_counter() - began


def _row(model: str, ranks: int, found: dict[str, list[float]]) -> dict[str, Any]:
    added = {name: [whole - plain for whole, plain in zip(found[name], found["plain"], strict=True)] for name in found}
    shares = {name: ratio(added[name], added["ddp"]) for name in OURS}
    return {
        "model": model,
        "ranks": ranks,
        "seconds": {name: spread(values) for name, values in found.items()},
        "added_s": {name: spread(added[name]) for name in ("ddp", *OURS)},
        "share_of_ddp": shares,
    }
