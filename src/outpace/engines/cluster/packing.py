"""Numbers in few bytes: vectors that are nearly zero, and small whole numbers that a backend can add.

A sparse message has, for each page of 65,536 entries, how many are not zero, then their values and their places in two
bytes each. A page that would be longer that way is sent as it is, without places. The reader must know the vectors'
lengths.

Gloo adds int8 and int32 but not int16. Two numbers whose sums fit int16 make one int32: a + 2^16 b. The sum of such
pairs is the pair of the sums: what is carried out of the lower half is taken back when the pair is taken apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

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
