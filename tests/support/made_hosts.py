"""Hosts that are threads of this process, joined by Gloo over loopback, and what their ranks contribute."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import torch
from torch.distributed import HashStore, PrefixStore

from outpace.codecs import codec, contribution_seed
from outpace.engines.cluster.group import Group
from outpace.engines.cluster.wire import Piece, Wire, wire_of
from outpace.engines.sums import RowSums, Terms
from outpace.protocol.rules import Rules
from outpace.vector import Chunk, accumulator

TIMEOUT_S = 60.0
DEPTH = 3  #: pieces under way at once, as in the reducer
PIECE_CHUNKS = 2

T = TypeVar("T")
_store, _serials = HashStore(), itertools.count()


class Given(NamedTuple):
    """A round: all contributions in order, how many of them each host's ranks made, and how they are cut."""

    rows: list[torch.Tensor]
    factors: list[float]
    shares: tuple[int, ...]
    sizes: tuple[int, ...]  #: of the chunks

    def terms(self, places: list[int]) -> Terms:
        rows = [list(torch.split(self.rows[i], self.sizes)) for i in places]
        seeds = [contribution_seed(i, 7) for i in places]
        return Terms(rows, None, [self.factors[i] for i in places], seeds, 1.0)

    def of_host(self, host: int) -> Terms | None:
        start = sum(self.shares[:host])
        return self.terms(list(range(start, start + self.shares[host]))) if self.shares[host] else None

    def sums(self, text: str) -> RowSums:
        dtype = self.rows[0].dtype
        starts = itertools.accumulate(self.sizes, initial=0)
        chunks = [Chunk(dtype, s * dtype.itemsize, n) for s, n in zip(starts, self.sizes, strict=False)]
        return RowSums(torch.empty(0, dtype=torch.uint8), chunks, Rules(len(self.rows), codec=text), None)

    def empty(self) -> torch.Tensor:
        return torch.full((sum(self.sizes),), 7.0, dtype=accumulator(self.rows[0].dtype))


def made(shares, sizes=(1000, 1000, 500, 1000, 64, 1000, 1000, 8, 1000), dtype=torch.float32, seed=0, whole=False):
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(sum(sizes), generator=generator, dtype=torch.float64) * 8 for _ in range(sum(shares))]
    factors = [1.0, 2.0, 3.0, 0.5, 1.0, 4.0, 1.0, 0.25]
    factors = [factors[i % len(factors)] for i in range(len(rows))]
    return Given([(row.round() if whole else row).to(dtype) for row in rows], factors, tuple(shares), tuple(sizes))


def sparse(given: Given, density: float) -> Given:
    """What ok-topk's ranks contribute of it."""
    rows = []
    for row in given.rows:
        mine, its = codec(f"ok-topk:density={density}"), row.clone()
        mine.deposited(0, [its], b"\1")
        rows.append(its)
    return given._replace(rows=rows)


def on_one_machine(text: str, given: Given) -> torch.Tensor:
    """The codec's own sum of all contributions."""
    sums, terms, out = given.sums(text), given.terms(list(range(len(given.rows)))), given.empty()
    for index, chunk in enumerate(torch.split(out, given.sizes)):
        sums.reduce(index, terms, chunk)
    return out


def over_hosts(text: str, given: Given) -> list[torch.Tensor]:
    """What each host has in the end."""
    return everywhere(len(given.shares), lambda group: reduced(group, wire_of(given.sums(text)), given))


def reduced(group: Group, wire: Wire, given: Given) -> torch.Tensor:
    """One host's part, with several pieces under way as in the reducer."""
    out, terms = given.empty(), given.of_host(group.host)
    under_way = deque()
    for piece in _pieces(given, out):
        if len(under_way) == DEPTH:
            wire.end(group, *under_way.popleft())
        under_way.append((piece, wire.begin(group, piece, terms, len(given.rows))))
    while under_way:
        wire.end(group, *under_way.popleft())
    return out


def everywhere(hosts: int, work: Callable[[Group], T]) -> list[T]:
    """What it comes to on each of so many hosts, in a group of them all."""
    store = PrefixStore(str(next(_serials)), _store)
    groups: list[Group] = []  # kept until all are done: one that is gone would be an error to the others

    def live(host: int) -> T:
        group = Group(store, "127.0.0.1", range(hosts), host, TIMEOUT_S)
        groups.append(group)
        return work(group)

    with ThreadPoolExecutor(hosts) as threads:
        return list(threads.map(live, range(hosts)))


def _pieces(given: Given, out: torch.Tensor) -> list[Piece]:
    pieces, start = [], 0
    for first in range(0, len(given.sizes), PIECE_CHUNKS):
        sizes = given.sizes[first : first + PIECE_CHUNKS]
        whole = out[start : start + sum(sizes)]
        pieces.append(Piece(first, list(torch.split(whole, sizes)), whole))
        start += sum(sizes)
    return pieces
