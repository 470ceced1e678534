"""Whom a rank talks to in which step, where that changes from step to step.

Owns the push schedule of SGP and the random partners of gossip. Everything follows from (seed, step) and the rank
alone, so all ranks and machines agree without a message. Only `random()` is drawn, whose values no Python version
changes, from a private generator that nobody else can disturb.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from functools import lru_cache

from outpace.errors import InvalidRules


def generator(purpose: str, *numbers: int) -> random.Random:
    """A private generator for one purpose, equal wherever it is made. Text seeds are hashed with SHA-512."""
    return random.Random("/".join((purpose, *map(str, numbers))))


def push_peers(rank: int, step: int, world: int, peers: int = 1) -> tuple[int, ...]:
    """Whom `rank` pushes to: SGP's exponential graph (Assran et al., ICML 2019).

    The distances 1, 2, 4, ... below `world` are taken in turn, `peers` of them in each step; forwards, then backwards,
    so that whoever pushes to a rank also hears of it. Forwards alone, half of the world that loses the other half
    gives all its weight to its last rank, and the rest divides nothing by nothing.

    >>> [push_peers(6, step, world=8) for step in range(6)]
    [(7,), (0,), (2,), (5,), (4,), (2,)]
    """
    return tuple((rank + distance) % world for distance in _distances(step, world, peers))


def push_sources(rank: int, step: int, world: int, peers: int = 1) -> tuple[int, ...]:
    """Who pushes to `rank` in this step: the inverse of `push_peers`.

    >>> push_sources(0, 1, world=8)
    (6,)
    """
    return tuple((rank - distance) % world for distance in _distances(step, world, peers))


def most_peers(world: int) -> int:
    """How many distances there are, so how many peers a rank can push to in one step."""
    return (world - 1).bit_length()


@lru_cache(maxsize=256)
def pairs(step: int, world: int, seed: int = 0) -> tuple[int, ...]:
    """The partner of each rank in this step: random disjoint pairs. In an odd world one rank's partner is itself.

    >>> partner = pairs(step=3, world=5)
    >>> [partner[partner[rank]] for rank in range(5)]
    [0, 1, 2, 3, 4]
    """
    draw = generator("pairs", seed, step)
    order = sorted(range(world), key=lambda _: draw.random())
    partner = list(range(world))
    for a, b in zip(order[::2], order[1::2], strict=False):
        partner[a], partner[b] = b, a
    return tuple(partner)


def random_neighbour(rank: int, step: int, neighbours: Collection[int], seed: int = 0) -> int:
    """The neighbour that `rank` picks in this step, each as likely as another."""
    if not neighbours:
        raise InvalidRules(
            f"rank {rank} has no neighbour to pick in step {step}; a rank alone should train without averaging"
        )
    draw = generator("neighbour", seed, step, rank).random()
    return sorted(neighbours)[int(draw * len(neighbours))]


def _distances(step: int, world: int, peers: int) -> list[int]:
    count = most_peers(world)
    if peers < 1 or (world > 1 and peers > count):
        raise InvalidRules(
            f"peers={peers} cannot be pushed to in a world of {world}: there are {count} distances (1, 2, 4, ... below "
            f"{world}), and a rank pushes to one peer at each; choose peers from 1 to {max(1, count)}"
        )
    if not count:
        return []
    sign = -1 if step * peers // count % 2 else 1
    return [sign << (step * peers + nth) % count for nth in range(peers)]
