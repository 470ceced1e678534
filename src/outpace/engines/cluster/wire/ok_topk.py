"""Ok-Topk between hosts: split and reduce to the owners of the chunks, then gather what they select (section 3 there).

S_h = sum_i w_i sent_i over host h's contributions: nearly all zero. Each chunk has an owner among the hosts.
1. every host sends the entries of S_h that are not zero to the owners of their chunks, who add them
2. an owner keeps the largest entries of its chunks, as on one machine, and sends them to all

With H hosts of R ranks and k = density * entries, a host sends at most R k (H-1)/H entries first and, unless there are
ties, k (H-1)/H then, each in a word and a half: 1.5 (R+1) k (H-1)/H words, fewer where ranks send the same entries. It
is never more than 3 k for each rank (the paper's bound is 6 k), nor than the plain sum sends. A contribution that is
not finite is not sparse and costs as much as that, once: it is refused.

All hosts end with the bits of the owners. They are those of one machine but for the order of float32 sums.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch

from outpace.codecs.ok_topk import OkTopk
from outpace.engines.cluster.group import Group
from outpace.engines.cluster.wire.piece import Piece
from outpace.engines.cluster.wire.sparse import add_packed, packed
from outpace.engines.cluster.wire.stages import Wire
from outpace.engines.sums import RowSums, Terms


class OkTopkWire(Wire):
    """Sparse host sums to owners, and sparse results to all."""

    collectives = 4

    def __init__(self, sums: RowSums, codec: OkTopk) -> None:
        super().__init__(sums)
        self._codec = codec

    def stages(self, group: Group, piece: Piece, terms: Terms | None, contributors: int) -> Iterator[Any]:
        """Two exchanges, each of sizes first."""
        hosts, me = len(group.hosts), group.hosts.index(group.host)
        self._add_up(piece, terms)
        owned = [[chunk for index, chunk in piece.numbered() if index % hosts == owner] for owner in range(hosts)]
        mine = owned[me]
        given = yield from _exchanged(group, [packed([] if chunks is mine else chunks) for chunks in owned])
        for message in given[:me] + given[me + 1 :]:
            add_packed(message, mine)
        for chunk in mine:
            self._codec.select(chunk)
        selected = yield from _exchanged(group, [packed(mine)] * hosts)
        piece.whole.zero_()
        for message, chunks in zip(selected, owned, strict=True):
            add_packed(message, chunks)


def _exchanged(group: Group, messages: Sequence[torch.Tensor]) -> Generator[Any, None, list[torch.Tensor]]:
    """Gives each host, in order, its message, and returns what each had for this one."""
    mine = torch.tensor([message.numel() for message in messages])
    theirs = torch.zeros_like(mine)
    yield group.trade(theirs, mine)
    sizes = theirs.tolist()
    found = torch.empty(sum(sizes), dtype=torch.uint8)
    yield group.trade(found, torch.cat(list(messages)), sizes, mine.tolist())
    return list(torch.split(found, sizes))
