"""Sums the rows of a sealed round into its slot, chunk by chunk, by whichever ranks are there.

Every chunk is summed in private memory and then copied, so that two ranks that do the same chunk write the same bits,
and one that was stopped half-way and wakes up later cannot spoil a result: before it copies it looks at the log, and a
round that was still to be reduced then proves that the rows it read were whole. Owns who does which chunk; returns the
event it found due, and leaves every decision to the ledger.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from outpace.engines.arena import kernel
from outpace.engines.arena.kernel import SLICE_S, Faults
from outpace.engines.arena.layout import Arena
from outpace.engines.arena.log import ArenaLog
from outpace.engines.arena.memory import Holds, tag
from outpace.engines.sums import RowSums, done, merged_meta
from outpace.job.machine import cores
from outpace.protocol.events import Attempt, Event, Refuse
from outpace.protocol.round import Round

_WORDS = 3  # per chunk: tag of who began it, tag of who did it, sum of squares


class Reduction:
    """One rank's part in reducing rounds. `wanted` reads the log and says whether an attempt is still current."""

    def __init__(self, memory: Arena, sums: RowSums, wanted: Callable[[Round], bool], faults: Faults) -> None:
        self._memory, self._sums, self._wanted, self._faults = memory, sums, wanted, faults
        self._tables: dict[int, tuple[memoryview[int], memoryview[float]]] = {}

    def work(self, sealed: Round, place: int, helping: bool) -> Event | None:
        """Does the chunks nobody has begun, from this rank's own share on; `helping` also those begun by others.

        The caller holds the slot. Returns the event that is due next, or None when there is nothing to do.
        """
        words, squares = self._table(sealed.slot)
        mark = tag(sealed)
        layout, sums = self._memory.layout, self._sums
        rows, slot = [layout.row(c.rank, c.row) for c in sealed.contributions], layout.slot(sealed.slot)
        for offset in (*rows, slot):
            self._memory.touch(offset, layout.vector_bytes)
        terms, out = sums.terms(sealed, rows), sums.chunks_at(slot)
        total = len(sums.chunks)
        start = place * total // max(1, len(sealed.contributions)) % max(1, total)
        for index in (*range(start, total), *range(start)):
            word = index * _WORDS
            if words[word + 1] == mark or (words[word] == mark and not helping):
                continue
            words[word] = mark
            self._faults.at("reducing", sealed.number)
            summed, scale = sums.sum(index, terms)
            found = sums.sum_of_squares(summed, scale)
            bad = None if math.isfinite(found) else sums.culprit(index, terms, sealed)
            if not self._wanted(sealed):
                return None
            if bad is not None:
                return Refuse(bad.rank, bad.incarnation, bad.step, sealed.number)
            torch.mul(summed, scale, out=out[index])
            squares[word + 2] = found
            kernel.before_showing()
            words[word + 1] = mark
        return self.ending(sealed)

    def progress(self, sealed: Round) -> tuple[int, int]:
        """(chunks that somebody has begun and not done, chunks that are done)."""
        words, _ = self._table(sealed.slot)
        mark = tag(sealed)
        done = words[1::_WORDS].tolist().count(mark)
        return words[::_WORDS].tolist().count(mark) - done, done

    def ending(self, sealed: Round) -> Event | None:
        """The event that completes the attempt, if every chunk is done. Puts what goes with the result beside it."""
        if self.progress(sealed)[1] < len(self._sums.chunks):
            return None
        layout = self._memory.layout
        meta = merged_meta(
            sealed, (self._memory.read_meta(layout.row_meta(c.rank, c.row)) for c in sealed.contributions)
        )
        if not self._wanted(sealed):
            return None
        self._memory.write_meta(layout.slot_meta(sealed.slot), meta)
        _, squares = self._table(sealed.slot)
        return done(0, sealed, self._sums.clip(squares[2::_WORDS].tolist()))

    def _table(self, slot: int) -> tuple[memoryview[int], memoryview[float]]:
        if slot not in self._tables:
            offset, count = self._memory.layout.chunk_states(slot), len(self._sums.chunks) * _WORDS
            self._tables[slot] = (self._memory.numbers(offset, count, "Q"), self._memory.numbers(offset, count, "d"))
        return self._tables[slot]


class Helper:
    """When one rank takes part in the reduction of a round: where a core is free, or nothing moves."""

    def __init__(self, rank: int, memory: Arena, sums: RowSums, holds: Holds, log: ArenaLog) -> None:
        self._rank, self._holds, self._log = rank, holds, log
        self.reduction = Reduction(memory, sums, self._is_current, log.faults)
        is_small = len(sums.chunks) <= 1  # whoever seals sums it alone, waking others would cost more
        log.helpers = 0 if is_small else max(1, cores() - 1)  # more would get in their own way
        self._seen: tuple[tuple[int, int, int], float] = ((0, 0, 0), 0.0)  # how far a reduction was, and since when

    def help(self, sealed: Round) -> Event | None:
        """Joins those who reduce. The event that is due then, if any."""
        now, (before, since) = time.monotonic(), self._seen
        under_way, done = self.reduction.progress(sealed)
        seen = (tag(sealed), under_way, done)
        stands_still = seen == before
        if stands_still and now - since < SLICE_S:
            return None
        self._seen = (seen, now)
        if under_way > self._log.helpers and not stands_still:
            return None  # as many as can are at it, and get on
        return self._work(sealed, helping=stands_still)

    def _work(self, sealed: Round, helping: bool) -> Event | None:
        self._holds.take(sealed)
        try:
            if not self._is_current(sealed):
                return None
            if self._holds.others_use(sealed.slot, tag(sealed), self._log.living()):
                return self._another_attempt(sealed)
            places = {c.rank: place for place, c in enumerate(sealed.contributions)}
            return self.reduction.work(sealed, places.get(self._rank, self._rank), helping)
        finally:
            self._holds.release()

    def _another_attempt(self, sealed: Round) -> Event | None:
        living, slots = self._log.living(), self._log.ledger.free_slots()
        free = next((slot for slot in slots if not self._holds.others_use(slot, 0, living)), None)
        if free is None:
            return None
        self._log.faults.at("opening-attempt", sealed.number)
        return Attempt(sealed.number, sealed.attempt + 1, free)

    def _is_current(self, sealed: Round) -> bool:
        self._log.look()
        current = self._log.ledger.reducing
        return current is sealed or (current is not None and tag(current) == tag(sealed))
