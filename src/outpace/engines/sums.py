"""The arithmetic of a round: from rows to one averaged vector, with the same bits whichever rank computes it.

Owns the order of summation, the finite check and the clip factor. Knows rows only as offsets into one byte vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from outpace.codecs import codec, contribution_seed
from outpace.interface import Mixed, Notes, Own, Tensors
from outpace.protocol.events import Done
from outpace.protocol.round import Contribution, Round
from outpace.protocol.rules import Rules
from outpace.vector import Chunk, accumulator, add_rows, view


class Terms(NamedTuple):
    rows: list[list[torch.Tensor]]  #: the chunks of each contribution
    spacing: int  #: bytes from row to row if they can be summed as one matrix, else 0
    factors: list[float]
    seeds: list[int]  #: for codecs that round randomly: one for each contribution
    scale: float


class RowSums:
    """Sums rows that lie in one memory, chunk by chunk, in private scratch."""

    def __init__(self, memory: torch.Tensor, chunks: list[Chunk], rules: Rules, max_grad_norm: float | None) -> None:
        self.chunks = chunks
        self.codec = codec(rules.codec)  #: only its stateless part is used here
        self._is_plain_sum = self.codec.is_plain_sum
        self._memory = memory
        self._normalise = rules.normalise
        self._max_grad_norm = max_grad_norm
        self._vectors: dict[int, list[torch.Tensor]] = {}  # by offset; cached, as slicing costs more than adding
        scratch = {
            dtype: torch.empty(max(c.elements for c in chunks if c.dtype == dtype), dtype=wide, device="cpu")
            for dtype, wide in {c.dtype: accumulator(c.dtype) for c in chunks}.items()
        }
        self._scratch = [scratch[c.dtype][: c.elements] for c in chunks]  # for each chunk, in the same memory

    def terms(self, sealed: Round, offsets: list[int], chosen: Sequence[int] | None = None) -> Terms:
        """What a round adds up: rows at these offsets, in the order of its contributions, or of the `chosen` ones."""
        factors, scale = sealed.factors(self._normalise)
        contributions = sealed.contributions
        if chosen is not None:
            factors, contributions = [factors[i] for i in chosen], tuple(contributions[i] for i in chosen)
        rows = [self.chunks_at(offset) for offset in offsets]
        plain = self._is_plain_sum and all(factor == 1.0 for factor in factors)
        seeds = [] if self._is_plain_sum else [contribution_seed(c.rank, c.step) for c in contributions]
        return Terms(rows, _spacing(offsets) if plain else 0, factors, seeds, scale)

    def add_up(self, index: int, terms: Terms, out: torch.Tensor) -> None:
        """Writes the sum of one chunk's raw rows into `out`, which has the accumulator's dtype."""
        rows = terms.rows
        if not terms.spacing or len(rows) == 2:
            add_rows(out, [row[index] for row in rows], terms.factors)
        else:
            first = rows[0][index]
            stack = first.as_strided((len(rows), first.numel()), (terms.spacing // first.element_size(), 1))
            torch.sum(stack, 0, dtype=out.dtype, out=out)  # one operation instead of one per row

    def reduce(self, index: int, terms: Terms, out: torch.Tensor) -> None:
        """Writes the coded sum of one chunk's rows into `out`, which has the accumulator's dtype."""
        if self._is_plain_sum:
            self.add_up(index, terms, out)
        else:
            self.codec.reduce(out, [row[index] for row in terms.rows], terms.factors, terms.seeds, index)

    def sum(self, index: int, terms: Terms) -> tuple[torch.Tensor, float]:
        """(coded sum of one chunk in private memory, factor still to be applied)."""
        scratch, dtype = self._scratch[index], self.chunks[index].dtype
        self.reduce(index, terms, scratch)
        if scratch.dtype == dtype:
            return scratch, terms.scale
        return scratch.mul_(terms.scale).to(dtype), 1.0

    def sum_of_squares(self, summed: torch.Tensor, scale: float) -> float:
        """The averaged chunk's sum of squares if clipping needs it; else 0 if it is finite. NaN if it is not."""
        wide = accumulator(summed.dtype)
        if self._max_grad_norm is None:
            if math.isfinite(float(summed.sum(dtype=wide))) or bool(summed.isfinite().all()):
                return 0.0
            return math.nan
        norm = float(torch.linalg.vector_norm(summed, dtype=wide))
        if not math.isfinite(norm) and bool(summed.isfinite().all()):
            norm = float(torch.linalg.vector_norm(summed, dtype=torch.float64))
        return (norm * scale) ** 2 if math.isfinite(norm) else math.nan

    def culprit(self, index: int, terms: Terms, sealed: Round) -> Contribution | None:
        """A contribution that is not finite in this chunk. None if all are finite and only their sum overflows."""
        for contribution, row in zip(sealed.contributions, terms.rows, strict=True):
            if not bool(row[index].isfinite().all()):
                return contribution
        return None

    def clip(self, squares: Iterable[float]) -> float:
        """The factor that clips the whole result; NaN if it is not finite."""
        norm = math.sqrt(sum(squares))
        limit = self._max_grad_norm
        clip = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))
        return clip if math.isfinite(norm) else math.nan

    def chunks_at(self, offset: int) -> list[torch.Tensor]:
        found = self._vectors.get(offset)
        if found is None:
            found = [view(self._memory, c.dtype, offset + c.offset, c.elements * c.dtype.itemsize) for c in self.chunks]
            self._vectors[offset] = found
        return found


def _spacing(offsets: list[int]) -> int:
    """Bytes from one row to the next; 0 if they are not evenly spaced."""
    spacing = offsets[1] - offsets[0] if len(offsets) > 1 else 0
    return 0 if spacing <= 0 or any(b - a != spacing for a, b in pairwise(offsets)) else spacing


def merged_meta(sealed: Round, blobs: Iterable[bytes]) -> bytes:
    """A result's metadata: which parameters any contributor had a gradient for, and the hyper-parameters."""
    present, hyper, last = b"", b"", b""
    for contribution, blob in zip(sealed.contributions, blobs, strict=True):
        if blob == last and contribution != sealed.hyper_from:
            continue  # the usual case: equal on all ranks
        last = blob
        mask, own_hyper = split_meta(blob)
        present = mask if not present else bytes(a | b for a, b in zip(present, mask, strict=True))
        if contribution == sealed.hyper_from:
            hyper = own_hyper
    return join_meta(present, hyper)


def join_meta(present: bytes, hyper: bytes) -> bytes:
    return len(present).to_bytes(4, "little") + present + hyper


def split_meta(blob: bytes) -> tuple[bytes, bytes]:
    end = 4 + int.from_bytes(blob[:4], "little")
    return blob[4:end], blob[end:]


def meta_of(record: Round, blob: bytes) -> tuple[bytes, bytes]:
    """A result's metadata. A round refused as a whole has none: its slot still holds an older round's."""
    return split_meta(blob) if record.contributions else (b"", b"")


@torch.no_grad()
def weighted_sum(rows: Sequence[tuple[Sequence[torch.Tensor], float]]) -> list[torch.Tensor]:
    """The sum in private memory, in the order given. Equal weights are applied to the sum, as in a mean."""
    (first, factor), *others = rows
    same = all(weight == factor for _, weight in others)
    wide = [tensor.to(accumulator(tensor.dtype), copy=True) for tensor in first]
    if not same:
        torch._foreach_mul_(wide, factor)
    for row, weight in others:
        torch._foreach_add_(
            wide, [t.to(w.dtype) for t, w in zip(row, wide, strict=True)], alpha=1.0 if same else weight
        )
    if same and factor != 1.0:
        torch._foreach_mul_(wide, factor)
    return wide


def mixed(terms: list[tuple[Tensors, Notes, float]], own: Own | None) -> Mixed:
    """The weighted sum of rows, and of as many notes as all of them have."""
    if own is not None:
        terms = [*terms, (own.tensors, own.notes, own.weight)]
    shortest = min((len(notes) for _, notes, _ in terms), default=0)
    summed = tuple(sum(notes[i] * weight for _, notes, weight in terms) for i in range(shortest))
    return Mixed(weighted_sum([(row, weight) for row, _, weight in terms]), summed)


def mean_of(rows: Sequence[Tensors], own: Tensors | None = None) -> Mixed:
    rows = rows if own is None else [*rows, own]
    return Mixed(weighted_sum([(row, 1 / len(rows)) for row in rows]))


def done(host: int, sealed: Round, clip: float) -> Done:
    """The event that ends an attempt, with the factor that `RowSums.clip` found."""
    is_void = math.isnan(clip)
    return Done(host, sealed.number, sealed.attempt, sealed.slot, 1.0 if is_void else clip, is_void)
