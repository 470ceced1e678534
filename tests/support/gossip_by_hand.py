"""Gossip on quadratics that pull each rank elsewhere, and the mixing matrix to do the same by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.strategies import strategy
from tests.support.by_hand import Maker, Table, Walk, noise, quadratics, walk

MINIMA = noise(6, 4, seed=4)
START = [1.0, -2.0, 0.5, 0.0]
UNEVEN = Table(80, 112, 96, 168, 100, 90)


def pulled(choice: str, make: Maker | None = None, world: int = 6, steps: int = 10, **options: object) -> list[Walk]:
    gradient = quadratics(MINIMA, torch.linspace(0.5, 2.0, 6, dtype=torch.float64))
    return walk(choice, world, steps, gradient, start=START, make=make, **options)  # type: ignore[arg-type]


def matrix(choice: str, world: int, iteration: int = 0) -> Tensor:
    """The mixing matrix that the ranks' rows make."""
    chosen = strategy(choice)
    found = torch.zeros(world, world, dtype=torch.float64)
    for rank in range(world):
        for other, weight in chosen.row(rank, iteration, world).items():  # type: ignore[attr-defined]
            found[rank, other] = weight
    return found
