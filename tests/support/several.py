"""A script with several optimizers, for real and for simulated ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

import outpace


class Trained(NamedTuple):
    weights: list[list[float]]  #: of each optimizer's parameter
    rounds: list[dict[int, list[tuple[int, int]]]]  #: of each optimizer, rank and step of all that is in each round


def contributions(results: Sequence[Trained], optimizer: int) -> list[list[tuple[int, int]]]:
    """Of each round. A rank that adopted a snapshot has not seen all of them; together all have."""
    seen: dict[int, list[tuple[int, int]]] = {}
    for result in results:
        for number, round_ in result.rounds[optimizer].items():
            assert seen.setdefault(number, round_) == round_
    assert sorted(seen) == list(range(len(seen)))
    return [seen[number] for number in sorted(seen)]


def train(
    strategy: str, steps: tuple[int, ...], loop: tuple[int, ...], meets_every: int = 0, timeout_s: float = 60.0
) -> Trained:
    """Each rank goes so many times through a loop that says which optimizer steps when."""
    rank = int(os.environ["RANK"])
    count = max(loop) + 1
    weights = [torch.nn.Parameter(torch.zeros(3)) for _ in range(count)]
    rounds: list[dict[int, list[tuple[int, int]]]] = [{} for _ in range(count)]

    def note(index: int) -> Any:
        return lambda record: rounds[index].update({record.number: [(c.rank, c.step) for c in record.contributions]})

    optimizers = [
        outpace.DistributedOptimizer(
            torch.optim.SGD([weight], lr=0.25), strategy, timeout_s=timeout_s, on_round=note(index)
        )
        for index, weight in enumerate(weights)
    ]
    for step in range(steps[rank]):
        for index in loop:
            weights[index].grad = torch.full((3,), float(rank + 1))
            optimizers[index].step()
        if meets_every and (step + 1) % meets_every == 0:
            for optimizer in optimizers:
                optimizer.synchronize()
    for optimizer in optimizers:
        optimizer.finish()
    return Trained([weight.tolist() for weight in weights], rounds)
