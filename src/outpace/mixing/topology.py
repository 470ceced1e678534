"""Who averages with whom, and with which weights: graphs over the ranks and their mixing matrices.

Owns the graphs' names, their syntax ("ring", "erdos-renyi-0.4", "0-1+1-2+2-0") and the weights on their edges.
A mixing matrix is its rows: row i is {j: W_ij}, has only the neighbours and i itself, and sums to 1.
Must never draw from a random source that is not made from the seed it is given.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

from outpace.errors import InvalidRules

if TYPE_CHECKING:
    import networkx
    import numpy as np
    from numpy.typing import NDArray

Edge: TypeAlias = tuple[int, int]
Row: TypeAlias = dict[int, float]

MIXING_NAMES = ("metropolis", "best-constant")
_RANDOM = "erdos-renyi"
_DRAWS = 64  # random graphs that are drawn in search of a connected one


def graph(choice: str, world: int, seed: int = 0) -> networkx.Graph:
    """The connected graph over ranks 0..world-1 that `choice` names: a name, or edges as in "0-1+1-2+2-0".

    "erdos-renyi" may carry the probability of an edge, as in "erdos-renyi-0.4"; only it looks at `seed`.

    >>> sorted(graph("torus", 6).edges)
    [(0, 1), (0, 2), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (3, 5), (4, 5)]
    >>> sorted(graph("0-1+1-2", 3).edges)
    [(0, 1), (1, 2)]
    """
    if world < 1:
        raise InvalidRules(f"a graph over {world} ranks has nobody in it; use a world of at least 1")
    text = str(choice).strip()
    if text in _NAMED:
        return _connected(_NAMED[text](world), world, text)
    if text == _RANDOM or text.startswith(f"{_RANDOM}-"):
        return _erdos_renyi(text, world, seed)
    if text[:1].isdigit() or "+" in text:
        return _connected(_parse(text, world), world, text)
    raise InvalidRules(
        f"no graph is called {text!r}; known are {', '.join((*_NAMED, _RANDOM))}, or write edges such as 0-1+1-2+2-0"
    )


def edges_of(graph: networkx.Graph) -> tuple[Edge, ...]:
    return tuple(sorted((min(a, b), max(a, b)) for a, b in graph.edges))


def neighbours(graph: networkx.Graph, rank: int) -> tuple[int, ...]:
    return tuple(sorted(graph.adj[rank]))


def laplacian(edges: Iterable[Edge], world: int) -> NDArray[np.float64]:
    """The graph Laplacian, degrees minus adjacency, of these edges over `world` ranks."""
    import numpy as np

    matrix = np.zeros((world, world))
    for a, b in edges:
        matrix[a, a] += 1
        matrix[b, b] += 1
        matrix[a, b] -= 1
        matrix[b, a] -= 1
    return matrix


def best_edge_weight(edges: Collection[Edge], world: int) -> float:
    """The alpha for which W = I - alpha L mixes fastest: 2 / (lambda_2 + lambda_max). 0 where there is no edge."""
    import numpy as np

    if not edges:
        return 0.0
    spectrum = np.linalg.eigvalsh(laplacian(edges, world))
    return float(2 / (spectrum[1] + spectrum[-1]))


def mixing(choice: str, graph: networkx.Graph) -> list[Row]:
    makers = {"metropolis": metropolis, "best-constant": best_constant}
    if choice not in makers:
        raise InvalidRules(
            f"no mixing weights are called {choice!r}; known are metropolis (never negative) and "
            "best-constant (one weight for every edge, mixes fastest of those)"
        )
    return makers[choice](graph)


def metropolis(graph: networkx.Graph) -> list[Row]:
    """W_ij = 1 / (1 + max(d_i, d_j)): symmetric, doubly stochastic, never negative.

    >>> metropolis(_connected([(0, 1), (1, 2)], 3, "path"))[0] == {0: 2 / 3, 1: 1 / 3}
    True
    """
    rows = metropolis_over(graph.edges, graph.nodes)
    return [rows[rank] for rank in range(len(rows))]


def metropolis_over(edges: Iterable[Edge], members: Iterable[int]) -> dict[int, Row]:
    """Metropolis weights over the edges that are active now; an edge with an end outside `members` does not count.

    >>> metropolis_over([(0, 1), (1, 2)], [0, 1, 5])
    {0: {1: 0.5, 0: 0.5}, 1: {0: 0.5, 1: 0.5}, 5: {5: 1.0}}
    """
    adjacent: dict[int, set[int]] = {member: set() for member in members}
    for a, b in edges:
        if a != b and a in adjacent and b in adjacent:
            adjacent[a].add(b)
            adjacent[b].add(a)
    return {member: _metropolis_row(member, adjacent) for member in adjacent}


def best_constant(graph: networkx.Graph) -> list[Row]:
    """W = I - alpha L with the best alpha. A rank of high degree may get a negative weight for itself."""
    world = len(graph)
    alpha = best_edge_weight(edges_of(graph), world)
    peers = [neighbours(graph, rank) for rank in range(world)]
    return [{rank: 1 - alpha * len(its), **dict.fromkeys(its, alpha)} for rank, its in enumerate(peers)]


def keep_present(row: Mapping[int, float], me: int, present: Collection[int]) -> Row:
    """The row without absent peers, whose weight goes to `me`.

    If all who are present leave out the same peers, a symmetric, doubly stochastic matrix stays one.

    >>> keep_present({0: 0.5, 1: 0.25, 2: 0.25}, me=0, present={0, 2})
    {0: 0.75, 2: 0.25}
    """
    kept = {rank: weight for rank, weight in row.items() if rank == me or rank in present}
    absent = [weight for rank, weight in row.items() if rank not in kept]
    kept[me] = math.fsum((kept.get(me, 0.0), *absent))
    return kept


def _metropolis_row(rank: int, adjacent: Mapping[int, set[int]]) -> Row:
    degree = len(adjacent[rank])
    shares = {peer: 1 + max(degree, len(adjacent[peer])) for peer in sorted(adjacent[rank])}
    # Fractions make the own weight the float nearest to the truth: exactly 1/N on a complete graph.
    given = sum((Fraction(count, share) for share, count in Counter(shares.values()).items()), Fraction(0))
    return {**{peer: 1 / share for peer, share in shares.items()}, rank: float(1 - given)}


def _torus(world: int) -> Iterator[Edge]:
    """The grid nearest to a square whose sides divide the world; a prime world is a ring."""
    rows = next(side for side in range(math.isqrt(world), 0, -1) if world % side == 0)
    columns = world // rows
    for rank in range(world):
        row, column = divmod(rank, columns)
        yield rank, row * columns + (column + 1) % columns
        yield rank, (row + 1) % rows * columns + column


def _exponential(world: int) -> Iterator[Edge]:
    distances = [1 << power for power in range((world - 1).bit_length())]
    return ((rank, (rank + distance) % world) for rank in range(world) for distance in distances)


_NAMED: dict[str, Callable[[int], Iterator[Edge]]] = {
    "ring": lambda world: ((rank, (rank + 1) % world) for rank in range(world)),
    "torus": _torus,
    "exponential": _exponential,
    "star": lambda world: ((0, rank) for rank in range(1, world)),
    "complete": lambda world: combinations(range(world), 2),
}


def _erdos_renyi(text: str, world: int, seed: int) -> networkx.Graph:
    """The first connected graph of those the seed draws. Uses `random()` alone, which all Python versions share."""
    import networkx as nx

    probability = _probability(text, world)
    draw = random.Random(f"{_RANDOM}/{seed}")
    for _ in range(_DRAWS):
        drawn = _build((pair for pair in combinations(range(world), 2) if draw.random() < probability), world)
        if nx.is_connected(drawn):
            return drawn
    raise InvalidRules(
        f"none of {_DRAWS} random graphs over {world} ranks with edge probability {probability:g} was connected; "
        f"give a higher one, for example {_RANDOM}-{_likely(world):.2f}"
    )


def _probability(text: str, world: int) -> float:
    given = text[len(_RANDOM) + 1 :]
    try:
        probability = float(given) if given or text != _RANDOM else _likely(world)
    except ValueError:
        probability = math.nan
    if not 0 < probability <= 1:
        raise InvalidRules(f"{text!r} must end in an edge probability in (0, 1], as in {_RANDOM}-0.4")
    return probability


def _likely(world: int) -> float:
    """Twice the probability at which large random graphs become connected."""
    return min(1.0, 2 * math.log(world) / world) if world > 1 else 1.0


def _parse(text: str, world: int) -> Iterator[Edge]:
    for part in re.split(r"[+,]", text):
        match = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", part)
        if match is None:
            raise InvalidRules(
                f"{part!r} in graph {text!r} is not an edge; write two ranks as 0-1, and + between edges"
            )
        a, b = int(match[1]), int(match[2])
        if a == b:
            raise InvalidRules(f"edge {part!r} in graph {text!r} links rank {a} with itself; leave it out")
        if max(a, b) >= world:
            raise InvalidRules(
                f"edge {part!r} in graph {text!r} names rank {max(a, b)}, but a world of {world} has ranks "
                f"0 to {world - 1}; start more ranks or leave the edge out"
            )
        yield a, b


def _connected(edges: Iterable[Edge], world: int, text: str) -> networkx.Graph:
    import networkx as nx

    made = _build(edges, world)
    parts = sorted(sorted(part) for part in nx.connected_components(made))
    if len(parts) > 1:
        named = ", ".join("{" + ", ".join(map(str, part)) + "}" for part in parts)
        raise InvalidRules(
            f"graph {text!r} over {world} ranks falls into {len(parts)} parts that never hear of each other: {named}; "
            f"link them, for example with {parts[0][-1]}-{parts[1][0]}"
        )
    return made


def _build(edges: Iterable[Edge], world: int) -> networkx.Graph:
    """No edge twice, none from a rank to itself, whatever a small world makes of its formula."""
    import networkx as nx

    made = nx.Graph()
    made.add_nodes_from(range(world))
    made.add_edges_from((a, b) for a, b in edges if a != b)
    return made
