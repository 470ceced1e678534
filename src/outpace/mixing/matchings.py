"""MATCHA (Wang, Sahu, Yang, Joshi, Kar, 2019): a graph's edges in matchings, each active in a share of the steps.

    W_k = I - alpha sum_m B_m(k) L_m,    B_m(k) ~ Bernoulli(p_m), drawn from a seed all ranks share

Owns the decomposition, the probabilities p under a communication budget, the edge weight alpha, and the draw of a
step. A rank waits for at most one peer per active matching, and for nobody in a step without one. W_k is symmetric
and its rows sum to 1 for every draw, but it may be negative: a rank of high degree can get a negative own weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from outpace.errors import InvalidRules, extra
from outpace.mixing.schedules import generator
from outpace.mixing.topology import Edge, Row, best_edge_weight, edges_of, graph

if TYPE_CHECKING:
    import networkx
    import numpy as np
    from numpy.typing import NDArray

    Matrix: TypeAlias = NDArray[np.float64]

Matching: TypeAlias = list[Edge]

_DECIMALS = 6  # of a probability: machines whose last bits differ still draw the same flags
_CUTS = 300  # rounds of cutting planes; 8 ranks need about 20, 64 about 150
_GAP = 1e-6  # lambda_2 may miss its best by this share, about the linear programme's own tolerance
_NEAR = 1e-6  # eigenvalues closer than this share of the largest count as one


@dataclass(frozen=True)
class Plan:
    """What MATCHA works out once, before training. Equal on all ranks."""

    matchings: tuple[tuple[Edge, ...], ...]
    probabilities: tuple[float, ...]
    alpha: float
    rho: float  #: spectral norm of E[W_k^2] - J: the spread that a step leaves on average, below 1 if it mixes
    seed: int
    _partners: tuple[dict[int, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        partners = tuple({a: b for x, y in matching for a, b in ((x, y), (y, x))} for matching in self.matchings)
        object.__setattr__(self, "_partners", partners)

    def row(self, rank: int, step: int) -> Row:
        """Row `rank` of W_k: the own weight, and alpha for the partner in each active matching."""
        flags = active(self.probabilities, self.seed, step)
        pairs = zip(flags, self._partners, strict=True)
        peers = [partner[rank] for is_active, partner in pairs if is_active and rank in partner]
        return {rank: 1 - self.alpha * len(peers), **dict.fromkeys(peers, self.alpha)}


@lru_cache(maxsize=32)
def plan(choice: str, world: int, budget: float = 0.5, seed: int = 0) -> Plan:
    """The plan for the graph that `choice` names, where on average a `budget` share of matchings is active.

    >>> plan("ring", 8, budget=0.5).probabilities
    (0.5, 0.5)
    """
    parts = matchings(graph(choice, world, seed))
    p = probabilities(parts, world, budget)
    alpha, rho = mixing_weight(parts, p, world)
    return Plan(tuple(map(tuple, parts)), tuple(p), alpha, rho, seed)


@lru_cache(maxsize=256)
def active(p: tuple[float, ...], seed: int, step: int) -> tuple[bool, ...]:
    """Which matchings are active in this step: a pure function of (seed, step), equal on all ranks and machines."""
    draw = generator("matchings", seed, step)
    return tuple(draw.random() < probability for probability in p)


def matchings(graph: networkx.Graph) -> list[Matching]:
    """Every edge in exactly one matching: an edge colouring, the same each time.

    There are as many matchings as the highest degree if the graph is bipartite, else at most one more (Vizing).
    The graph is not changed.

    >>> from outpace.mixing.topology import graph
    >>> matchings(graph("ring", 4))
    [[(0, 1), (2, 3)], [(0, 3), (1, 2)]]
    """
    colouring = _Colouring(graph.nodes, max((degree for _, degree in graph.degree), default=0))
    for u, v in edges_of(graph):
        colouring.add(u, v)
    found: list[Matching] = [[] for _ in range(colouring.colours)]
    for rank, links in sorted(colouring.at.items()):
        for colour, peer in links.items():
            if rank < peer:
                found[colour].append((rank, peer))
    return [matching for matching in found if matching]


def probabilities(matchings: Sequence[Sequence[Edge]], world: int, budget: float) -> list[float]:
    """The p that maximises lambda_2(sum p_m L_m), where sum p <= budget M and 0 <= p <= 1, to six decimals.

    Kelley's cutting planes: for each x of length 1 that is orthogonal to 1, lambda_2 is at most sum p_m x'L_m x. The
    linear programme finds the best p under the cuts known so far; the eigenvectors there are the next cuts.
    """
    if not 0 < budget <= 1:
        raise InvalidRules(
            f"budget={budget} is not a share of the communication in (0, 1]: with 0 nobody would ever average, and "
            "above 1 there is nothing left to activate; use 0.5 for half of it, 1 for all"
        )
    if budget == 1 or not matchings:
        return [1.0] * len(matchings)
    return [round(min(1.0, max(0.0, share)), _DECIMALS) for share in _best_shares(matchings, world, float(budget))]


def mixing_weight(matchings: Sequence[Sequence[Edge]], p: Sequence[float], world: int) -> tuple[float, float]:
    """The alpha with the smallest rho, and that rho = || I - 2 alpha E[L] + alpha^2 E[L^2] - J ||.

    rho is convex in alpha, 1 at 0, and at least 1 from 2 / lambda_max(E[L]) on. As L_m^2 = 2 L_m for a matching,
    E[L^2] = E[L]^2 + 2 sum p_m (1 - p_m) L_m.
    """
    import numpy as np

    with extra("gossip"):
        from scipy.optimize import minimize_scalar

    if not matchings:
        return 0.0, 0.0
    mean = _weighted(matchings, p, world)
    square = mean @ mean + _weighted(matchings, [2 * share * (1 - share) for share in p], world)
    rest = np.eye(world) - 1 / world

    def rho(alpha: float) -> float:
        return float(np.linalg.eigvalsh(rest - 2 * alpha * mean + alpha**2 * square)[-1])

    if all(share == 1 for share in p):
        alpha = best_edge_weight([edge for matching in matchings for edge in matching], world)
    else:
        bound = 2 / float(np.linalg.eigvalsh(mean)[-1])
        alpha = float(minimize_scalar(rho, bounds=(0, bound), method="bounded", options={"xatol": 1e-10}).x)
    return alpha, rho(alpha)


class _Colouring:
    """Colours of edges such that no rank has two of one colour. Edges are added one by one, in any order."""

    def __init__(self, ranks: Iterable[int], most_edges: int) -> None:
        self.at: dict[int, dict[int, int]] = {rank: {} for rank in ranks}  # rank -> colour -> whom it links to
        self.colours = most_edges
        self._vizing = most_edges + 1  # so many always suffice

    def add(self, u: int, v: int) -> None:
        """Takes a colour that both ends have free, or frees one by a Kempe chain, or turns a fan."""
        both = [colour for colour in self._free(u) if colour not in self.at[v]]
        if both:
            self._link(u, v, both[0])
        elif not self._add_by_chain(u, v):
            self.colours = self._vizing
            self._add_by_fan(u, v)

    def _add_by_chain(self, u: int, v: int) -> bool:
        for a, b in product(self._free(u), self._free(v)):
            chain = self._chain(v, a, b)
            if chain[-1] != u:  # a chain to u would take from u the colour that it frees for v
                self._swap(chain, a, b)
                self._link(u, v, a)
                return True
        return False

    def _add_by_fan(self, u: int, v: int) -> None:
        """Misra and Gries, 1992: with one colour more than the highest degree this cannot fail."""
        fan = self._fan(u, v)
        c, d = self._free(u)[0], self._free(fan[-1])[0]
        self._swap(self._chain(u, d, c), c, d)
        colour_to = {peer: colour for colour, peer in self.at[u].items()}
        last = 0
        while d in self.at[fan[last]]:  # the swap keeps the fan in order up to a rank that has d free
            last += 1
        turned = [colour_to[peer] for peer in fan[1 : last + 1]]
        for peer, colour in zip(fan[1:], turned, strict=False):
            del self.at[u][colour], self.at[peer][colour]
        for peer, colour in zip(fan, [*turned, d], strict=False):
            self._link(u, peer, colour)

    def _fan(self, u: int, v: int) -> list[int]:
        """Neighbours of u from v on, each linked to u by a colour that the one before it has free."""
        fan, following = [v], [v]
        while following:
            free = self._free(fan[-1])
            following = [peer for colour, peer in self.at[u].items() if colour in free and peer not in fan][:1]
            fan += following
        return fan

    def _free(self, rank: int) -> list[int]:
        return [colour for colour in range(self.colours) if colour not in self.at[rank]]

    def _link(self, u: int, v: int, colour: int) -> None:
        self.at[u][colour], self.at[v][colour] = v, u

    def _chain(self, start: int, a: int, b: int) -> list[int]:
        """The ranks along the edges of colours a, b, a, ... from `start`, which has none of colour b."""
        chain = [start]
        while a in self.at[chain[-1]]:
            chain.append(self.at[chain[-1]][a])
            a, b = b, a
        return chain

    def _swap(self, chain: list[int], a: int, b: int) -> None:
        for rank in chain:
            links = self.at[rank]
            old = {b: links.pop(a, None), a: links.pop(b, None)}
            links.update({colour: peer for colour, peer in old.items() if peer is not None})


def _best_shares(matchings: Sequence[Sequence[Edge]], world: int, budget: float) -> list[float]:
    import numpy as np

    ends = [np.array(matching).T for matching in matchings]
    cuts = [np.array([2 * len(matching) / (world - 1) for matching in matchings])]  # the mean of all eigenvalues but 0
    share = best = np.full(len(matchings), budget)
    best_value = 0.0
    for _ in range(_CUTS):
        value, vectors = _second(_weighted(matchings, share.tolist(), world))
        if value > best_value:
            best, best_value = share, value
        slopes = [np.array([((x[a] - x[b]) ** 2).sum() for a, b in ends]) for x in vectors]
        cuts += [*slopes, np.mean(slopes, axis=0)]
        share, bound = _under_cuts(np.array(cuts), budget * len(matchings))
        if bound - best_value <= _GAP * bound:
            break
    return [float(number) for number in best]


def _second(matrix: Matrix) -> tuple[float, list[Matrix]]:
    """lambda_2 of a Laplacian, and the eigenvectors of all eigenvalues that are as good as equal to it."""
    import numpy as np

    lifted = matrix + np.trace(matrix) / len(matrix)  # moves 1, whose eigenvalue is 0, above lambda_2
    values, vectors = np.linalg.eigh(lifted)
    near = int(np.count_nonzero(values <= values[0] + _NEAR * values[-1]))
    return float(values[0]), list(vectors.T[:near])


def _under_cuts(cuts: Matrix, total: float) -> tuple[Matrix, float]:
    """The p within the budget whose lowest cut is highest, and how high it is: no lambda_2 can be above."""
    import numpy as np

    with extra("gossip"):
        from scipy.optimize import linprog

    rows, count = cuts.shape
    height = np.ones((rows, 1))
    found = linprog(
        np.r_[np.zeros(count), -1.0],
        A_ub=np.r_[np.c_[-cuts, height], np.c_[np.ones((1, count)), 0.0]],
        b_ub=np.r_[np.zeros(rows), total],
        bounds=[(0, 1)] * count + [(0, None)],
    )
    return np.asarray(found.x[:count]), float(found.x[count])


def _weighted(matchings: Sequence[Sequence[Edge]], weights: Sequence[float], world: int) -> Matrix:
    import numpy as np

    total: Matrix = np.zeros((world, world))
    for matching, weight in zip(matchings, weights, strict=True):
        a, b = np.array(matching).T
        total[a, a] += weight  # a rank stands at most once in a matching, so no addition is lost
        total[b, b] += weight
        total[a, b] -= weight
        total[b, a] -= weight
    return total
