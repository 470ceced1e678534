"""How a model lies in one flat vector, and how such vectors are written and added up. Owns offsets, dtypes and chunk
bounds; holds no memory itself.

Tensors are grouped by dtype and start on 64-byte bounds. Sums run chunk by chunk and element by element, so neither
the chunk size nor who reduces which chunk can change a bit of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from outpace.errors import OutpaceError

ALIGN_BYTES = 64
CHUNK_ELEMENTS = 131_072  #: measured: larger chunks stream best, smaller ones share better between ranks
SUPPORTED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Entry(NamedTuple):
    """One tensor's place in the vector."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int  #: bytes

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Chunk(NamedTuple):
    """A piece of the vector with one dtype: the unit of reduction."""

    dtype: torch.dtype
    offset: int  #: bytes
    elements: int


@dataclass(frozen=True)
class VectorLayout:
    """Where every tensor lies, in the order the tensors were given."""

    entries: tuple[Entry, ...]
    nbytes: int

    @classmethod
    def of(cls, named: Iterable[tuple[str, torch.Tensor]]) -> VectorLayout:
        """Lays out tensors. Refuses dtypes whose sums are not defined here."""
        tensors = list(named)
        places: dict[int, int] = {}
        end = 0
        for dtype in SUPPORTED:
            for index, (_, tensor) in enumerate(tensors):
                if tensor.dtype == dtype:
                    places[index] = end
                    end += _aligned(tensor.numel() * tensor.element_size())
        for index, (name, tensor) in enumerate(tensors):
            if index not in places:
                raise OutpaceError(
                    f"parameter {name} has dtype {tensor.dtype}, which outpace cannot average; use one of "
                    f"{', '.join(str(d) for d in SUPPORTED)}"
                )
        entries = (Entry(n, tuple(t.shape), t.dtype, places[i]) for i, (n, t) in enumerate(tensors))
        return cls(tuple(entries), max(end, ALIGN_BYTES))

    def chunks(self) -> list[Chunk]:
        """The vector cut for reduction. Padding is always zero, and is summed with the rest."""
        found: list[Chunk] = []
        for dtype in SUPPORTED:
            mine = [e for e in self.entries if e.dtype == dtype and e.nbytes]
            if not mine:
                continue
            start = min(e.offset for e in mine)
            end = max(e.offset + _aligned(e.nbytes) for e in mine)
            step = CHUNK_ELEMENTS * dtype.itemsize
            for offset in range(start, end, step):
                found.append(Chunk(dtype, offset, (min(end, offset + step) - offset) // dtype.itemsize))
        return found

    def views(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """The tensors inside a byte vector laid out like this."""
        return [view(memory, e.dtype, e.offset, e.nbytes).view(e.shape) for e in self.entries]

    def describe(self) -> list[list[Any]]:
        """Plain values, for ranks to compare their models."""
        return [[e.name, list(e.shape), str(e.dtype)] for e in self.entries]


def packed(tensors: Iterable[torch.Tensor], start: int = 0) -> tuple[list[int], int]:
    """(byte offset of each tensor when packed one after the other, end). Tensors may have any dtype."""
    offsets, end = [], _aligned(start)
    for tensor in tensors:
        offsets.append(end)
        end += _aligned(tensor.numel() * tensor.element_size())
    return offsets, end


def place(memory: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    """A tensor inside a byte vector, of the shape and dtype of another."""
    return view(memory, like.dtype, offset, like.numel() * like.element_size()).view(like.shape)


def view(memory: torch.Tensor, dtype: torch.dtype, offset: int, nbytes: int) -> torch.Tensor:
    return memory[offset : offset + nbytes].view(dtype)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums are computed: half types accumulate in float32."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def fill(
    places: Sequence[torch.Tensor], values: Sequence[torch.Tensor], present: Sequence[int] = (), scale: float = 1.0
) -> None:
    """Writes values, times `scale`, into places. Where `present` is 0 it writes zeros."""
    if 0 in present:
        for place, is_there in zip(places, present, strict=True):
            if not is_there:
                place.zero_()
        kept = [pair for pair, is_there in zip(zip(places, values, strict=True), present, strict=True) if is_there]
        places, values = [place for place, _ in kept], [value for _, value in kept]
    if places:
        torch._foreach_copy_(list(places), list(values))
        if scale != 1.0:
            torch._foreach_mul_(list(places), scale)


def add_rows(out: torch.Tensor, rows: Iterable[torch.Tensor], factors: Iterable[float]) -> None:
    """The weighted sum of rows, one after the other in the dtype of `out`."""
    terms = zip(rows, factors, strict=True)
    first, factor = next(terms)
    if factor == 1.0 and first.dtype == out.dtype and (second := next(terms, None)) is not None:
        torch.add(first, second[0], alpha=second[1], out=out)  # the same bits as below, with one pass less
    else:
        out.copy_(first)
        if factor != 1.0:
            out.mul_(factor)
    for row, factor in terms:
        out.add_(row, alpha=factor)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES
