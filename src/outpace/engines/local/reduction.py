"""Sums the rows of a sealed round into its slot, chunk by chunk, by whichever ranks are there.

Every chunk is summed in private memory and then copied, so that two ranks that do the same chunk write the same bits,
and one that was stopped half-way and wakes up later cannot spoil a result: before it copies it looks at the log, and a
round that was still to be reduced then proves that the rows it read were whole. Owns the arithmetic of a round; returns
the event it found due, and leaves every decision to the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch

from outpace.engines.local.arena import Memory
from outpace.engines.local.faults import Faults
from outpace.engines.local.holds import tag
from outpace.protocol.events import Event, Kind
from outpace.protocol.round import Contribution, Round
from outpace.vector import Chunk, accumulator, view

_WORDS = 3  # per chunk: tag of who began it, tag of who did it, sum of squares


class Terms(NamedTuple):
    """How the rows of one round add up."""

    rows: list[list[torch.Tensor]]  #: per contribution, its chunks
    stacks: list[torch.Tensor] | None  #: per chunk, all rows as one matrix, where they lie evenly spaced
    factors: list[float]
    scale: float


class Reduction:
    """One rank's part in reducing rounds. `wanted` reads the log and says whether an attempt is still current."""

    def __init__(
        self,
        memory: Memory,
        chunks: list[Chunk],
        normalise: str,
        max_grad_norm: float | None,
        wanted: Callable[[Round], bool],
        faults: Faults,
    ) -> None:
        self._memory = memory
        self._chunks = chunks
        self._normalise = normalise
        self._max_grad_norm = max_grad_norm
        self._wanted = wanted
        self._faults = faults
        self._vectors: dict[int, list[torch.Tensor]] = {}  # cached: slicing anew costs more than adding
        self._matrices: dict[tuple[int, int, int], list[torch.Tensor]] = {}
        self._tables: dict[int, tuple[memoryview[int], memoryview[float]]] = {}
        self._scratch = {
            dtype: torch.empty(max(c.elements for c in chunks if c.dtype == dtype), dtype=accumulator(dtype))
            for dtype in {c.dtype for c in chunks}
        }

    @property
    def is_small(self) -> bool:
        """One chunk: whoever seals sums it alone, waking others would cost more."""
        return len(self._chunks) <= 1

    def work(self, sealed: Round, place: int, helping: bool) -> Event | None:
        """Does the chunks nobody has begun, from this rank's own share on; `helping` also those begun by others.

        The caller holds the slot. Returns the event that is due next, or None when there is nothing to do.
        """
        words, squares = self._table(sealed.slot)
        mark = tag(sealed)
        terms = self._terms(sealed)
        total = len(self._chunks)
        start = place * total // max(1, len(sealed.contributions)) % max(1, total)
        for index in (*range(start, total), *range(start)):
            word = index * _WORDS
            if words[word + 1] == mark or (words[word] == mark and not helping):
                continue
            words[word] = mark
            self._faults.at("reducing", sealed.number)
            summed, scale = self._sum(index, terms)
            found = self._sum_of_squares(summed, scale)
            bad = None if math.isfinite(found) else self._culprit(index, terms, sealed)
            if not self._wanted(sealed):
                return None
            if bad is not None:
                return Event(Kind.REFUSE, bad.rank, bad.incarnation, bad.step, sealed.number)
            torch.mul(summed, scale, out=self._chunks_at(self._memory.layout.slot(sealed.slot))[index])
            squares[word + 2] = found
            words[word + 1] = mark
        return self.ending(sealed)

    def ending(self, sealed: Round) -> Event | None:
        """The event that completes the attempt, if every chunk is done. Puts what goes with the result beside it."""
        words, squares = self._table(sealed.slot)
        mark = tag(sealed)
        if any(words[word + 1] != mark for word in range(0, len(self._chunks) * _WORDS, _WORDS)):
            return None
        meta = self._merged_meta(sealed)
        if not self._wanted(sealed):
            return None
        self._memory.write_meta(self._memory.layout.slot_meta(sealed.slot), meta)
        norm = math.sqrt(sum(squares[word + 2] for word in range(0, len(self._chunks) * _WORDS, _WORDS)))
        limit = self._max_grad_norm
        clip = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))
        value = clip if math.isfinite(norm) else math.nan
        return Event(Kind.DONE, 0, round=sealed.number, place=sealed.slot, attempt=sealed.attempt, value=value)

    def _terms(self, sealed: Round) -> Terms:
        factors, scale = sealed.weights(self._normalise)
        offsets = [self._memory.layout.row(c.rank, c.row) for c in sealed.contributions]
        rows = [self._chunks_at(offset) for offset in offsets]
        plain = all(factor == 1.0 for factor in factors)
        return Terms(rows, self._stacks(offsets) if plain else None, factors, scale)

    def _sum(self, index: int, terms: Terms) -> tuple[torch.Tensor, float]:
        """(sum of one chunk in private memory, factor that is still to be applied)."""
        chunk = self._chunks[index]
        scratch = self._scratch[chunk.dtype][: chunk.elements]
        if terms.stacks is not None:
            torch.sum(terms.stacks[index], 0, dtype=scratch.dtype, out=scratch)
        else:
            scratch.copy_(terms.rows[0][index])
            if terms.factors[0] != 1.0:
                scratch.mul_(terms.factors[0])
            for row, factor in zip(terms.rows[1:], terms.factors[1:], strict=True):
                scratch.add_(row[index], alpha=factor)
        if scratch.dtype == chunk.dtype:
            return scratch, terms.scale
        return scratch.mul_(terms.scale).to(chunk.dtype), 1.0

    def _sum_of_squares(self, summed: torch.Tensor, scale: float) -> float:
        """Of the averaged chunk, if it is needed for clipping; else only whether it is finite (0 or NaN)."""
        wide = accumulator(summed.dtype)
        if self._max_grad_norm is None:
            if math.isfinite(float(summed.sum(dtype=wide))) or bool(summed.isfinite().all()):
                return 0.0
            return math.nan
        norm = float(torch.linalg.vector_norm(summed, dtype=wide))
        if not math.isfinite(norm) and bool(summed.isfinite().all()):
            norm = float(torch.linalg.vector_norm(summed, dtype=torch.float64))
        return (norm * scale) ** 2 if math.isfinite(norm) else math.nan

    def _culprit(self, index: int, terms: Terms, sealed: Round) -> Contribution | None:
        """A contribution that is not finite in this chunk. None: all are finite, and their sum overflows."""
        for contribution, row in zip(sealed.contributions, terms.rows, strict=True):
            if not bool(row[index].isfinite().all()):
                return contribution
        return None

    def _merged_meta(self, sealed: Round) -> bytes:
        """Which parameters any contributor had a gradient for, and the hyper-parameters of the round."""
        layout, last = self._memory.layout, b""
        present, hyper = b"", b""
        for c in sealed.contributions:
            blob = self._memory.read_meta(layout.row_meta(c.rank, c.row))
            if blob == last and c != sealed.hyper_from:
                continue  # the usual case: all ranks say the same
            last = blob
            mask, own_hyper = split_meta(blob)
            present = mask if not present else bytes(a | b for a, b in zip(present, mask, strict=True))
            if c == sealed.hyper_from:
                hyper = own_hyper
        return join_meta(present, hyper)

    def _chunks_at(self, offset: int) -> list[torch.Tensor]:
        found = self._vectors.get(offset)
        if found is None:
            memory = self._memory.region(offset, self._memory.layout.vector_bytes)
            found = [view(memory, c.dtype, c.offset, c.elements * c.dtype.itemsize) for c in self._chunks]
            self._vectors[offset] = found
        return found

    def _stacks(self, offsets: list[int]) -> list[torch.Tensor] | None:
        """The rows as one matrix for each chunk: a full set is summed by one operation instead of one a row."""
        spacing = offsets[1] - offsets[0] if len(offsets) > 1 else 0
        if spacing <= 0 or any(b - a != spacing for a, b in pairwise(offsets)):
            return None
        key = (offsets[0], spacing, len(offsets))
        if key not in self._matrices:
            self._matrices[key] = [
                self._memory.bytes.view(c.dtype).as_strided(
                    (len(offsets), c.elements),
                    (spacing // c.dtype.itemsize, 1),
                    (offsets[0] + c.offset) // c.dtype.itemsize,
                )
                for c in self._chunks
            ]
        return self._matrices[key]

    def _table(self, slot: int) -> tuple[memoryview[int], memoryview[float]]:
        """Progress of the reduction into a slot, as whole numbers and as floats."""
        if slot not in self._tables:
            offset, count = self._memory.layout.chunk_states(slot), len(self._chunks) * _WORDS
            self._tables[slot] = (self._memory.numbers(offset, count, "Q"), self._memory.numbers(offset, count, "d"))
        return self._tables[slot]


def join_meta(present: bytes, hyper: bytes) -> bytes:
    """One blob of both."""
    return len(present).to_bytes(4, "little") + present + hyper


def split_meta(blob: bytes) -> tuple[bytes, bytes]:
    """The inverse of `join_meta`."""
    end = 4 + int.from_bytes(blob[:4], "little")
    return blob[4:end], blob[end:]
