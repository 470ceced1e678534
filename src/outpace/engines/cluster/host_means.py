"""Means of published weights over the hosts of a group: sums of each host first, then one vector a host on the wire.

The hosts that average in an iteration are known from the schedule, and what each of its ranks has in it from the log.
So agents exchange parts of their hosts' sums directly, without a word beforehand: each adds up one part for all, and
gives its mean to all. A host sends less than two vectors, however many hosts are in the group. A host none of whose
ranks is in the iteration sends no sum, but gets the mean: for its ranks, which are late.

A mean lies in a row of the host, with the number of its iteration and of the rows that are in it. The number is taken
away before the row is written again, so that whoever reads too slowly notices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch

from outpace.engines.arena import kernel
from outpace.engines.arena.kernel import Arena
from outpace.engines.arena.layout import NOTES_BYTES
from outpace.engines.cluster.group import Group
from outpace.mixing.schedules import Placement, host_group
from outpace.protocol.published import Frozen, Publication
from outpace.protocol.rules import Publishing, Rules
from outpace.vector import Chunk, accumulator, view

_SUM, _MEAN = 5, 6  # tags; 1 to 4 are of transfers and messages


class Segment:
    """All of the vector that has one dtype, and private memory for it. An old group may still write there."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.dtype, self.offset = chunks[0].dtype, chunks[0].offset
        self.elements = sum(chunk.elements for chunk in chunks)
        self.wide = accumulator(self.dtype)
        self.whole = torch.empty(self.elements, dtype=self.wide)  #: this host's sum, then the mean
        self._others = torch.empty(0, dtype=self.wide)

    def of(self, row: torch.Tensor) -> torch.Tensor:
        return view(row, self.dtype, self.offset, self.elements * self.dtype.itemsize)

    def from_others(self, count: int, elements: int) -> list[torch.Tensor]:
        """Where the parts that other hosts send of their sums go."""
        if self._others.numel() < count * elements:
            self._others = torch.empty(count * elements, dtype=self.wide)
        return [self._others[place * elements :][:elements] for place in range(count)]

    def parts(self, count: int) -> list[torch.Tensor]:
        """The vector in one part for each host."""
        bounds = [self.elements * place // count for place in range(count + 1)]
        return [self.whole[start:end] for start, end in pairwise(bounds)]


class HostMeans:
    def __init__(self, memory: Arena, chunks: Sequence[Chunk], rules: Rules, host: int) -> None:
        self._memory, self._chunks, self._host = memory, chunks, host
        self._publishing = rules.publishes or Publishing()
        self._placement = Placement(rules.hosts)
        self._segments: list[Segment] = []

    def hosts(self, number: int) -> Sequence[int]:
        """Those that average in an iteration with this one."""
        publishing = self._publishing
        return host_group(self._host, number, self._placement, publishing.group_size, publishing.all_every)

    def average(self, group: Group, hosts: Sequence[int], frozen: Frozen, row: int) -> None:
        """Takes part in the mean of these hosts, and leaves it in a row of this host. Blocks until all of them do.

        Raises where that cannot be any more, and must not be called again for this group: what it has sent is on its
        way, and parts are told apart by their order alone.
        """
        of = self._placement.of
        counts = Counter(of[rank] for rank in frozen.publications if of[rank] in hosts)
        if not counts:
            return  # the last mean that there was stays
        mine = [place for rank, place in sorted(frozen.publications.items()) if of[rank] == self._host]
        segments, self._segments = self._segments or self._made_segments(), []  # if this fails, they are not used again
        for segment in segments:
            group.fetch(partial(self._average, group, hosts, segment, mine, counts))
        self.forget(row)
        there = self._row(row)
        for segment in segments:
            segment.of(there).copy_(segment.whole)
        self._note(row, frozen.number, counts.total())
        self._segments = segments

    def forget(self, row: int) -> None:
        """From here on nobody takes what is in a row for a mean."""
        self._memory.numbers(self._memory.layout.notes(row), 1, "d")[0] = 0.0
        kernel.before_showing()

    def _average(
        self, group: Group, hosts: Sequence[int], segment: Segment, mine: Sequence[Publication], counts: Counter[int]
    ) -> None:
        self._add_up(segment, [segment.of(self._row(place.row)) for place in mine])
        parts, others = segment.parts(len(hosts)), [host for host in hosts if host != self._host]
        given, own = dict(zip(hosts, parts, strict=True)), parts[list(hosts).index(self._host)]
        sending = [host for host in others if counts[host]]
        sums = dict(zip(sending, segment.from_others(len(sending), own.numel()), strict=True))
        group.exchange_parts(sums, {host: given[host] for host in others} if mine else {}, _SUM)
        terms = [own if host == self._host else sums[host] for host in hosts if counts[host]]
        total = terms[0].clone() if len(terms) > 1 else terms[0]
        for term in terms[1:]:
            total += term
        torch.mul(total, 1 / counts.total(), out=own)
        group.exchange_parts({host: given[host] for host in others}, dict.fromkeys(others, own), _MEAN)

    def _add_up(self, segment: Segment, rows: Sequence[torch.Tensor]) -> None:
        if rows:
            segment.whole.copy_(rows[0])
        for row in rows[1:]:
            segment.whole += row

    def _row(self, row: int) -> torch.Tensor:
        layout = self._memory.layout
        offset, nbytes = layout.published(row), layout.published_bytes
        self._memory.touch(offset, nbytes)
        return self._memory.region(offset, nbytes)

    def _note(self, row: int, number: int, count: int) -> None:
        numbers = self._memory.numbers(self._memory.layout.notes(row), NOTES_BYTES // 8, "d")
        numbers[1], numbers[2] = number, count
        kernel.before_showing()
        numbers[0] = 2

    def _made_segments(self) -> list[Segment]:
        dtypes = dict.fromkeys(chunk.dtype for chunk in self._chunks)
        return [Segment([chunk for chunk in self._chunks if chunk.dtype == dtype]) for dtype in dtypes]
