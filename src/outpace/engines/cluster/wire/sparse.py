"""Vectors that are nearly zero, as bytes: per page how many entries are not zero, then their values and their places.

Places are counted within pages of 65,536 entries, in two bytes. A page that would be longer so than as it is goes as it
is, without places. Whoever reads must know the lengths of the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

PAGE = 65_536
_PLACE, _COUNT = torch.int16, torch.int32
_MIDDLE = PAGE // 2  #: places are numbered from -32,768: torch computes with signed numbers


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
