"""How a round's contributions are summed over hosts: a wire for each codec, and numbers in few bytes.

The codecs own what a coded sum is, here and on one machine; a wire owns what of it is sent.

    none          host sums as they are                                       4 bytes an entry
    bf16          host sums in bfloat16                                       2
    global-qsgd   sums of codes, under one scale for all hosts                1, as long as sums fit int8
    ok-topk       entries that are not zero, to the owner of their chunk,     6 for each of them
                  and those that it selects, to all

An entry of 4 bytes is one of a sum in float32; models of float64 are summed, and sent, in float64.

Operations of a group are matched by their order alone, which must therefore depend on nothing but the order of calls: a
piece starts its next collective when another piece begins, never because something has arrived.

A sparse message has, for each page of 65,536 entries, how many are not zero, then their values and their places in two
bytes each. A page that would be longer that way is sent as it is, without places. The reader must know the vectors'
lengths. Gloo adds int8 and int32 but not int16. Two numbers whose sums fit int16 make one int32: a + 2^16 b. The sum of
such pairs is the pair of the sums: what is carried out of the lower half is taken back when the pair is taken apart.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch

from outpace.codecs.base import Bfloat16
from outpace.codecs.global_qsgd import GlobalQSGD, decode, shared_scale, summed_codes
from outpace.codecs.ok_topk import OkTopk
from outpace.engines.cluster.group import Group
from outpace.engines.sums import RowSums, Terms
from outpace.errors import OutpaceError


class Piece:
    """Chunks one after the other in private memory. An old group may still write into it: it is not used again."""

    def __init__(self, first: int, chunks: list[torch.Tensor], whole: torch.Tensor) -> None:
        self.first = first  #: index of the first chunk
        self.chunks = chunks  #: of the accumulator's dtype, one after the other in `whole`
        self.whole = whole

    def numbered(self) -> list[tuple[int, torch.Tensor]]:
        return list(enumerate(self.chunks, self.first))


class Wire(ABC):
    """One way to add up pieces over hosts. Begun for several pieces before the first is ended, on all hosts alike."""

    collectives = 1  #: for each piece, one after the other

    def __init__(self, sums: RowSums) -> None:
        self._sums = sums
        self._under_way: list[UnderWay] = []

    @abstractmethod
    def stages(self, group: Group, piece: Piece, terms: Terms | None, contributors: int) -> Iterator[Any]:
        """Begins one collective after the other and yields each, to go on when it has ended.

        Sums this host's rows (None: it has none) of a round of so many contributors. What a collective works on is
        new or the piece's own: after a failure an old one may still write there.
        """

    def begin(self, group: Group, piece: Piece, terms: Terms | None, contributors: int) -> UnderWay:
        """Begins to send. Waits for collectives of earlier pieces, if others of theirs depend on them."""
        earlier = [its for its in self._under_way if its.group is group]  # what others left behind is void
        begun = UnderWay(group, self.stages(group, piece, terms, contributors), self.collectives)
        for its in earlier:
            its.go_on()
        self._under_way = [*earlier, begun]
        return begun

    def end(self, group: Group, piece: Piece, begun: UnderWay) -> None:
        """Waits, and leaves the sum over all hosts in the piece."""
        begun.finish()
        self._under_way.remove(begun)

    def _add_up(self, piece: Piece, terms: Terms | None) -> None:
        if terms is None:
            piece.whole.zero_()
            return
        for index, chunk in piece.numbered():
            self._sums.add_up(index, terms, chunk)


class UnderWay:
    def __init__(self, group: Group, stages: Iterator[Any], collectives: int) -> None:
        self.group = group
        self._stages, self._left = stages, collectives
        self._work = next(stages)

    def go_on(self) -> None:
        """Waits for a collective that is not the last, and begins the next."""
        if self._left > 1:
            self._end_one()

    def finish(self) -> None:
        while self._left:
            self._end_one()

    def _end_one(self) -> None:
        self.group.end(self._work)
        self._left -= 1
        self._work = next(self._stages, None)


class PlainWire(Wire):
    def stages(self, group: Group, piece: Piece, terms: Terms | None, contributors: int) -> Iterator[Any]:
        self._add_up(piece, terms)
        yield group.add_up(piece.whole)


class Bfloat16Wire(Wire):
    """Host sums in bfloat16: half the bytes of float32.

    sum = bf16(S_1) + ... + bf16(S_H)        S_h = sum_i w_i bf16(g_i), in float32, over the contributions of host h

    Besides the rounding of every contribution, which is all there is on one machine, host sums are rounded to bfloat16
    and the backend adds them in bfloat16: for H hosts, each at most 2^-8 of a host sum or of a sum of some of them. All
    hosts end with the same bits. A sum beyond 3.396e38 is infinite, and its round void.
    """

    def stages(self, group: Group, piece: Piece, terms: Terms | None, contributors: int) -> Iterator[Any]:
        if terms is None:
            piece.whole.zero_()
        else:
            for index, chunk in piece.numbered():
                self._sums.reduce(index, terms, chunk)
        rounded = piece.whole.to(torch.bfloat16)
        yield group.add_up(rounded)
        piece.whole.copy_(rounded)


class GlobalQSGDWire(Wire):
    """Global-QSGD between hosts: sums of codes, a byte each as long as they fit.

    r = max over hosts of their largest |w_i g_i|      one for each chunk
    sum = r/s (C_1 + ... + C_H)                        C_h: the codes of host h's contributions, added

    Codes are those of the codec on one machine, each drawn from its contribution's own seed, for as many levels as all
    contributors of the round allow. Whole numbers are added, so that the sum has the bits it has on one machine.
    """

    collectives = 2

    def __init__(self, sums: RowSums, codec: GlobalQSGD) -> None:
        super().__init__(sums)
        self._codec = codec

    def stages(self, group: Group, piece: Piece, terms: Terms | None, contributors: int) -> Iterator[Any]:
        shared = torch.tensor([_scale(index, terms) for index, _ in piece.numbered()], dtype=torch.float64)
        yield group.add_up(shared, largest=True)
        levels, scales = self._codec.levels_for(contributors), shared.tolist()
        codes = torch.zeros(piece.whole.shape, dtype=dtype_for(levels * contributors))
        places = torch.split(codes, [chunk.numel() for chunk in piece.chunks])
        if terms is not None:
            for index, (place, scale) in enumerate(zip(places, scales, strict=True), piece.first):
                rows = [row[index] for row in terms.rows]
                place.copy_(summed_codes(rows, terms.factors, terms.seeds, index, scale, levels))
        added = addable(codes)
        yield group.add_up(added)
        numbers_of(added, codes)
        for chunk, place, scale in zip(piece.chunks, places, scales, strict=True):
            decode(chunk, place, scale, levels)


def _scale(index: int, terms: Terms | None) -> float:
    """Of this host's rows. Infinite if any entry is not finite: there is no largest of numbers and NaN."""
    scale = 0.0 if terms is None else shared_scale([row[index] for row in terms.rows], terms.factors)
    return scale if math.isfinite(scale) else math.inf


class OkTopkWire(Wire):
    """Ok-Topk between hosts: split and reduce to the owners of the chunks, then gather what they select (section 3).

    S_h = sum_i w_i sent_i over host h's contributions: nearly all zero. Each chunk has an owner among the hosts.
    1. every host sends the entries of S_h that are not zero to the owners of their chunks, who add them
    2. an owner keeps the largest entries of its chunks, as on one machine, and sends them to all

    With H hosts of R ranks and k = density * entries, a host sends at most R k (H-1)/H entries first and, unless there
    are ties, k (H-1)/H then, each in a word and a half: 1.5 (R+1) k (H-1)/H words, fewer where ranks send the same
    entries. It is never more than 3 k for each rank (the paper's bound is 6 k), nor than the plain sum sends. A
    contribution that is not finite is not sparse and costs as much as that, once: it is refused.

    All hosts end with the bits of the owners. They are those of one machine but for the order of float32 sums.
    """

    collectives = 4

    def __init__(self, sums: RowSums, codec: OkTopk) -> None:
        super().__init__(sums)
        self._codec = codec

    def stages(self, group: Group, piece: Piece, terms: Terms | None, contributors: int) -> Iterator[Any]:
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


def wire_of(sums: RowSums) -> Wire:
    """The wire of a run's codec. Raises for a codec that has none, rather than send something else."""
    codec = sums.codec
    if codec.is_plain_sum:
        return PlainWire(sums)
    if isinstance(codec, Bfloat16):
        return Bfloat16Wire(sums)
    if isinstance(codec, GlobalQSGD):
        return GlobalQSGDWire(sums, codec)
    if isinstance(codec, OkTopk):
        return OkTopkWire(sums, codec)
    raise OutpaceError(f"{codec!r} has no wire: it works on one host only. Use one of outpace's codecs between hosts")


PAGE = 65_536
_PLACE, _COUNT = torch.int16, torch.int32
_MIDDLE = PAGE // 2  #: places are numbered from -32,768: torch computes with signed numbers
_HALF, _BITS = 1 << 15, 16


def packed(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Bytes of all entries that are not zero; NaN is not. Vectors have one dtype. Nothing of no vector."""
    counts, values, places = [], [], []
    for page in _pages(vectors):
        where = page.nonzero().squeeze(1)
        is_short = where.numel() * (page.itemsize + _PLACE.itemsize) < page.numel() * page.itemsize
        counts.append(where.numel() if is_short else page.numel())
        values.append(page[where] if is_short else page)
        if is_short:
            places.append((where - _MIDDLE).to(_PLACE))
    parts = [torch.tensor(counts, dtype=_COUNT), *values, *places]
    return torch.cat([part.view(torch.uint8) for part in parts])


def add_packed(message: torch.Tensor, vectors: Sequence[torch.Tensor]) -> None:
    """Adds what was packed from vectors of the same lengths and dtype."""
    pages, start = _pages(vectors), 0

    def take(count: int, dtype: torch.dtype) -> torch.Tensor:
        nonlocal start
        begin, start = start, start + count * dtype.itemsize
        return message[begin:start].clone().view(dtype)  # a copy: where it lies, numbers are not aligned

    counts = take(len(pages), _COUNT).tolist()
    values = [take(count, page.dtype) for count, page in zip(counts, pages, strict=True)]
    for page, count, added in zip(pages, counts, values, strict=True):
        if count == page.numel():
            page.add_(added)
        else:
            page.index_add_(0, take(count, _PLACE).to(torch.int64).add_(_MIDDLE), added)


def _pages(vectors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [page for vector in vectors for page in torch.split(vector, PAGE)]


def dtype_for(most: int) -> torch.dtype:
    """In which numbers of at most this magnitude fit, with both signs."""
    return next(dtype for dtype in (torch.int8, torch.int16, torch.int32) if most <= torch.iinfo(dtype).max)


def addable(numbers: torch.Tensor) -> torch.Tensor:
    """The numbers as a backend can add them: themselves, or the two halves of the vector in pairs."""
    if numbers.dtype != torch.int16:
        return numbers
    split = (numbers.numel() + 1) // 2
    pairs = numbers[:split].to(torch.int32)
    pairs[: numbers.numel() - split] += numbers[split:].to(torch.int32) << _BITS
    return pairs


def numbers_of(added: torch.Tensor, numbers: torch.Tensor) -> None:
    """Writes what `addable` made, after sums were made of it, into `numbers`."""
    if added is numbers:
        return
    split = added.numel()
    low = (added + _HALF).bitwise_and_((1 << _BITS) - 1).sub_(_HALF)
    numbers[:split] = low
    numbers[split:] = (added - low)[: numbers.numel() - split] >> _BITS
