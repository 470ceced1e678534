"""With which ranks a rank averages in a step, if that changes from step to step.

Owns SGP's push schedule, gossip's random partners and WAGMA-SGD's groups. All are functions of (seed, step, rank), so
ranks and machines agree without communication. Draws only `random()`, whose values are the same in all Python versions,
from private generators.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

from outpace.errors import InvalidRules

Group: TypeAlias = tuple[int, ...]
Partition: TypeAlias = list[Group]


def generator(purpose: str, *numbers: int) -> random.Random:
    """A private generator for one purpose, the same on all ranks. Text seeds are hashed with SHA-512."""
    return random.Random("/".join((purpose, *map(str, numbers))))


def push_peers(rank: int, step: int, world: int, peers: int = 1) -> tuple[int, ...]:
    """Whom `rank` pushes to: SGP's exponential graph (Assran et al., ICML 2019).

    The distances 1, 2, 4, ... below `world` are used in turn, `peers` of them in each step, forward and then backward,
    so that a rank also receives from the ranks it pushes to. With forward pushes alone, if half of the ranks die, the
    others end up with all weight on their last rank, and with 0 / 0 elsewhere.

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


def group(rank: int, step: int, world: int, size: int) -> Group:
    """The group of `rank` in this step of WAGMA-SGD (Li et al., TPDS 2021, section 3.2), in order.

    Groups of a step are disjoint, cover the world and change from step to step, so that what one rank knows reaches all
    others in about log_S P steps.

    Where P and S are powers of two, this is the paper's butterfly with the index that its own example implies: in step
    t a group flips the bits (t s + r) mod g, r = 0..s-1, with s = log2 S and g = log2 P. (Algorithm 1 as printed shifts
    cumulatively, and makes groups of 2 where the example beside it has 4.)

    Elsewhere, the ranks stand in a row that is cut into groups of nearly equal size, about S. After each step the row
    is dealt out like cards: first the first of each group, then the second of each, and so on. A group's members thus
    land far apart, as the perfect shuffle does it in a butterfly network. The pattern starts again once everybody has
    heard from everybody.

    >>> group(0, 1, world=8, size=4), group(2, 1, world=8, size=4)
    ((0, 1, 4, 5), (2, 3, 6, 7))
    >>> group(0, 0, world=7, size=2), group(0, 1, world=7, size=2)
    ((0, 1, 2), (0, 3, 5))
    """
    rounds = _rounds(world, size)
    return rounds[step % len(rounds)][rank]


class Placement:
    """Which rank is on which of several hosts, numbered from 0. One object for a run: groups are cached by it."""

    def __init__(self, of: Sequence[int]) -> None:
        self.of = tuple(of)  #: the host of each rank
        self.ranks: list[list[int]] = [[] for _ in range(max(of) + 1)]  #: of each host
        for rank, host in enumerate(of):
            self.ranks[host].append(rank)


def host_group(host: int, step: int, placement: Placement, size: int | None, all_every: int = 0) -> Group:
    """The hosts that average with `host` in this step: at least two, with about `size` ranks in all; in every
    `all_every`-th step all hosts.

    Ranks of a host average in shared memory, and each host sends one vector to its group. With one rank per host these
    are the groups of `group`.

    >>> host_group(1, 1, Placement([0, 0, 1, 1, 2, 2, 3, 3]), size=4)
    (1, 3)
    """
    if all_every and (step + 1) % all_every == 0:
        return tuple(range(len(placement.ranks)))
    rounds = _host_rounds(placement, size)
    return rounds[step % len(rounds)][host]


def placed_group(rank: int, step: int, placement: Placement, size: int | None) -> Group:
    """The ranks of all hosts that average with this rank's in this step."""
    rounds = _placed_rounds(placement, size)
    return rounds[step % len(rounds)][placement.of[rank]]


@lru_cache(maxsize=64)
def _host_rounds(placement: Placement, size: int | None) -> tuple[tuple[Group, ...], ...]:
    hosts = len(placement.ranks)
    if size is None:
        return _rounds(hosts, default_size(hosts))
    return _rounds(hosts, 1 if size == 1 else min(hosts, max(2, round(size * hosts / len(placement.of)))))


@lru_cache(maxsize=64)
def _placed_rounds(placement: Placement, size: int | None) -> list[list[Group]]:
    """For each step of a period and each host, the ranks. Members share one tuple."""
    rounds = []
    for groups in _host_rounds(placement, size):
        ranks = {hosts: tuple(sorted(r for host in hosts for r in placement.ranks[host])) for hosts in set(groups)}
        rounds.append([ranks[hosts] for hosts in groups])
    return rounds


def period(world: int, size: int) -> int:
    """The number of steps after which groups repeat and (with a size above 1) every rank has heard from all others."""
    return len(_rounds(world, size))


def default_size(world: int) -> int:
    """About sqrt(P), as in the paper: 4->2, 16->4, 64->8, 256->16, 1024->32.

    A power of two stays one, rounded up (2->2, 8->4 as in the paper's example, 32->8): larger groups mix faster.

    >>> [default_size(world) for world in (1, 2, 3, 8, 16, 100, 1024)]
    [1, 2, 2, 4, 4, 10, 32]
    """
    if world <= 1:
        return 1
    if _is_power_of_two(world):
        return 1 << (world.bit_length() // 2)
    return max(2, round(math.sqrt(world)))


@lru_cache(maxsize=64)
def _rounds(world: int, size: int) -> tuple[tuple[Group, ...], ...]:
    """For each step of a period, the group of each rank. Members share one tuple."""
    if not 1 <= size <= world:
        raise InvalidRules(
            f"groups of {size} cannot be made of {world} ranks, as each rank is in one group of a step; "
            f"choose a size from 1 to {world}, for example {default_size(world)}"
        )
    partitions: list[Partition]
    if size == 1:
        partitions = [[(rank,) for rank in range(world)]]
    elif _is_power_of_two(world) and _is_power_of_two(size):
        partitions = _butterfly(world, size)
    else:
        partitions = _dealt(world, size)
    return tuple(_by_rank(partition, world) for partition in partitions)


def _by_rank(partition: Partition, world: int) -> tuple[Group, ...]:
    group_of = {rank: members for members in partition for rank in members}
    return tuple(group_of[rank] for rank in range(world))


def _butterfly(world: int, size: int) -> list[Partition]:
    """One partition for each step until the flipped bits are those of step 0 again."""
    g, s = world.bit_length() - 1, size.bit_length() - 1
    steps = range(g // math.gcd(g, s))
    return [_flipping([1 << (t * s + r) % g for r in range(s)], world) for t in steps]


def _flipping(bits: list[int], world: int) -> Partition:
    """Groups of the ranks that differ in these bits only."""
    offsets = [0]
    for bit in bits:
        offsets += [offset | bit for offset in offsets]
    firsts = (rank for rank in range(world) if not rank & sum(bits))
    return [tuple(sorted(first | offset for offset in offsets)) for first in firsts]


def _dealt(world: int, size: int) -> list[Partition]:
    row = list(range(world))
    heard = [1 << rank for rank in range(world)]  # bit j of heard[i]: what j knew has reached i
    partitions = []
    while any(known != (1 << world) - 1 for known in heard):
        cut = _cut(row, size)
        partitions.append([tuple(sorted(members)) for members in cut])
        _tell(cut, heard)
        row = [members[nth] for nth in range(len(cut[0])) for members in cut if nth < len(members)]
    return partitions


def _cut(row: list[int], size: int) -> list[list[int]]:
    """Groups of about `size` along the row, none larger than another by more than one, and none of a single rank."""
    count = max(1, min(len(row) // 2, round(len(row) / size)))
    small, larger = divmod(len(row), count)
    ends = [small * n + min(n, larger) for n in range(count + 1)]
    return [row[start:end] for start, end in pairwise(ends)]


def _tell(cut: Iterable[list[int]], heard: list[int]) -> None:
    for members in cut:
        known = 0
        for rank in members:
            known |= heard[rank]
        for rank in members:
            heard[rank] = known


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
