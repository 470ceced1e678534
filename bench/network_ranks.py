"""A rank of bench/network.py: does what it is asked, one question after the other, and prints an answer to each.

Questions are files `0.json`, `1.json`, ... in a directory that all ranks see; answers are lines of JSON. Runs under
torchrun on every host, as a script of its own.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import outpace
from bench.bare import BareRank

TENSORS = 160
WARM_UP = 3
#: (strategy, whether gradients are copied into rows): what is measured of ours
OURS = {
    "round": ("allreduce", False),
    "end to end": ("allreduce", True),
    "round in bf16": ("allreduce:codec=bf16", False),
    "round in int8": ("allreduce:codec=global-qsgd", False),
}
COMPUTE_S = 0.005  #: of everybody in `waits`, as a sleep
Answer = dict[str, Any]


class Weights(torch.nn.Module):
    """Parameters of which only their number matters; their gradients are this rank's number."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(elements // TENSORS) for _ in range(TENSORS))
        for weight in self.weights:
            weight.grad = torch.zeros_like(weight) + dist.get_rank()


class Trainer:
    """Weights and the optimizer that averages their gradients; a step is the gradients' way into the weights."""

    def __init__(self, elements: int, strategy: str) -> None:
        self.model = Weights(elements)
        inner = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.optimizer = outpace.DistributedOptimizer(inner, strategy=strategy, model=self.model)

    def step(self) -> None:
        self.optimizer.step()


class Rank:
    """What can be asked."""

    def __init__(self) -> None:
        self._tensor: torch.Tensor | None = None
        self._ours: dict[str, BareRank] = {}

    def prepare(self, system: str, elements: int) -> Answer:
        """Before `calls` of a system; says why if it cannot."""
        if system == "gloo":
            self._tensor = torch.empty(elements).fill_(0.0)  # real memory, which zeros are not until written
            return {}
        ours = self._ours[system] = BareRank(elements, *OURS[system])
        ours.replica.weight.grad = torch.full((elements,), float(dist.get_rank()))
        ours.warm_up()
        return {}

    def calls(self, system: str, times: int) -> Answer:
        """Mean seconds of back-to-back calls."""
        call = self._call(system)
        for _ in range(WARM_UP):
            call()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(times):
            call()
        seconds = (time.perf_counter() - began) / times
        dist.barrier()
        return {
            "seconds": seconds,
            "calls": times + WARM_UP,
            "is_right": self._is_right(system),
        }

    def waits(self, system: str, elements: int, slow_s: float, duration_s: float) -> Answer:
        """Steps of which the last rank's are slow: what a step of each rank takes beside its computing."""
        computing_s = slow_s if dist.get_rank() == dist.get_world_size() - 1 else COMPUTE_S
        if system == "gloo":  # all do the same number of steps
            tensor = torch.zeros(elements)
            times = int(duration_s / slow_s)
            return _waits([_step_s(computing_s, lambda: dist.all_reduce(tensor)) for _ in range(times)])
        trainer = Trainer(elements, system)
        dist.barrier()
        seconds, deadline = [], time.monotonic() + duration_s
        while time.monotonic() < deadline:
            seconds.append(_step_s(computing_s, trainer.step))
        stats = trainer.optimizer.stats
        trainer.optimizer.finish()
        dist.barrier()
        return {**_waits(seconds), "waited_s": stats.waited_s, "late_share": stats.late_share}

    def end(self) -> Answer:
        for rank in self._ours.values():
            rank.close()
        dist.barrier()
        return {}

    def _call(self, system: str) -> Callable[[], object]:
        if system == "gloo":
            return lambda: dist.all_reduce(self._tensor)
        return self._ours[system].step

    def _is_right(self, system: str) -> bool:
        """Whether the last result is the mean of all ranks' gradients, where they were given."""
        if system != "end to end":
            return True
        return bool((self._ours[system].replica.seen == (dist.get_world_size() - 1) / 2).all())


def _step_s(computing_s: float, step: Callable[[], object]) -> float:
    time.sleep(computing_s)
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def _waits(seconds: list[float]) -> Answer:
    """Without the first steps, which touch pages and connections for the first time."""
    usual = seconds[WARM_UP:]
    return {"steps": len(seconds), "median_s": statistics.median(usual), "longest_s": max(usual), "step_s": usual}


def main(directory: str) -> None:
    dist.init_process_group("gloo")
    rank = Rank()
    for number in itertools.count():
        path = Path(directory, f"{number}.json")
        while not path.exists():
            time.sleep(0.005)
        question = json.loads(path.read_text())
        what = question.pop("what")
        print(json.dumps(getattr(rank, what)(**question)), flush=True)
        if what == "end":
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
