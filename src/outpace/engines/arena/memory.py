"""The memory of one machine's ranks: rows, results, published weights and snapshots, in the arena they share, and how
the rows of a sealed round become its result.

On one machine the ranks do that themselves, chunk by chunk; between hosts, agents do. Every chunk is summed in private
memory and then copied, so that two ranks that do the same chunk write the same bits. A rank that was stopped half-way
and wakes up later cannot spoil a result: it reads the log before it copies, and if the round is still in reduction, the
rows it read were intact.

A rank marks the slot it holds before it reads or writes there. A slot whose round is no longer kept may be given to
another round while a stopped rank still holds it. So a rank that wants to write into a slot first marks it, then reads
the log again, then the others' holds: either it sees the sleeper's hold and takes another slot, or the sleeper, once
awake, sees in the log that its round is over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence

import torch

from outpace.engines.arena import arena, kernel
from outpace.engines.arena.arena import Files
from outpace.engines.arena.kernel import SLICE_S, Arena, Faults
from outpace.engines.arena.layout import NOTES_BYTES
from outpace.engines.arena.log import ArenaLog
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.engines.memory import Term
from outpace.engines.sums import RowSums, done, join_meta, mean_of, merged_meta, meta_of, mixed
from outpace.interface import Contents, Mixed, Notes, Own, Result, Tensors
from outpace.job.machine import cores
from outpace.protocol.events import Attempt, Event, Refuse
from outpace.protocol.ledger import Ledger
from outpace.protocol.published import Publication
from outpace.protocol.round import Round
from outpace.replica.staging import Staging
from outpace.vector import VectorLayout, packed, place

Reducing = Callable[[Round], "Event | None"]
_SLOT_BITS = 16  #: of a hold; the rest is the attempt's tag
_SLOT_MASK = (1 << _SLOT_BITS) - 1
_NO_ROUND = (1 << 48) - 1  #: a tag that no attempt has
_WORDS = 3  # for each chunk: tag of the attempt that began it, tag of the one that finished it, sum of squares
UNUSED_ROUNDS = 32  #: memory that was not used for this long is freed


def tag(round_: Round) -> int:
    """A number that is unique to each attempt of each round, and never 0."""
    return (round_.number << 8 | round_.attempt & 0xFF) + 1


class Holds:
    """For each rank and for the host's agent: the slot it uses, and for which attempt of which round."""

    def __init__(self, memory: Arena, rank: int) -> None:
        layout = memory.layout
        self._rank = rank
        self._words = [memory.numbers(layout.hold(r), 1, "Q") for r in range(layout.world + 1)]

    def take(self, round_: Round) -> None:
        """Marks the round's slot as used by this rank. All its later reads, the log first, come after the mark."""
        self._words[self._rank][0] = tag(round_) << _SLOT_BITS | round_.slot + 1  # in one word: never half of two
        kernel.before_looking()

    def take_idle(self, slot: int) -> None:
        """Marks a slot as used by this rank, but for no round. As above."""
        self._words[self._rank][0] = _NO_ROUND << _SLOT_BITS | slot + 1
        kernel.before_looking()

    def release(self) -> None:
        """Unmarks the slot: this rank has finished reading and writing there."""
        kernel.before_showing()
        self._words[self._rank][0] = 0

    def others_use(self, slot: int, mark: int, living: Iterable[int]) -> bool:
        """Whether another living rank still uses the slot for anything but `mark`."""
        kernel.before_looking()
        held = (self._words[rank][0] for rank in living if rank != self._rank)
        return any(word & _SLOT_MASK == slot + 1 and word >> _SLOT_BITS != mark for word in held)


class Reduction:
    """One rank's part in reducing rounds. `wanted` reads the log and says whether an attempt is still current."""

    def __init__(self, memory: Arena, sums: RowSums, wanted: Callable[[Round], bool], faults: Faults) -> None:
        self._memory, self._sums, self._wanted, self._faults = memory, sums, wanted, faults
        self._tables: dict[int, tuple[memoryview[int], memoryview[float]]] = {}

    def work(self, sealed: Round, place: int, helping: bool) -> Event | None:
        """Does the chunks that nobody has begun, starting with this rank's share; with `helping` also those begun by
        others.

        The caller holds the slot. Returns the event that is due next, or None if there is nothing to do.
        """
        words, squares = self._table(sealed.slot)
        mark = tag(sealed)
        memory, sums = self._memory, self._sums
        rows, slot = [memory.rows[c.rank, c.row].vector for c in sealed.contributions], memory.slots[sealed.slot].vector
        memory.touch(slot, memory.layout.vector_bytes)  # of the rows, what is read: another rank reads the rest
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
        """(chunks that are begun but not done, chunks that are done)."""
        words, _ = self._table(sealed.slot)
        mark = tag(sealed)
        done = words[1::_WORDS].tolist().count(mark)
        return words[::_WORDS].tolist().count(mark) - done, done

    def ending(self, sealed: Round) -> Event | None:
        """The event that completes the attempt, if every chunk is done. Writes the result's metadata."""
        if self.progress(sealed)[1] < len(self._sums.chunks):
            return None
        memory = self._memory
        blobs = [memory.read_meta(memory.rows[c.rank, c.row].meta) for c in sealed.contributions]
        meta = merged_meta(sealed, blobs)
        if not self._wanted(sealed):
            return None
        memory.write_meta(memory.slots[sealed.slot].meta, meta)
        _, squares = self._table(sealed.slot)
        return done(0, sealed, self._sums.clip(squares[2::_WORDS].tolist()))

    def _table(self, slot: int) -> tuple[memoryview[int], memoryview[float]]:
        if slot not in self._tables:
            offset, count = self._memory.layout.chunk_states(slot), len(self._sums.chunks) * _WORDS
            self._tables[slot] = (self._memory.numbers(offset, count, "Q"), self._memory.numbers(offset, count, "d"))
        return self._tables[slot]


class Helper:
    """Decides when a rank takes part in reducing a round: if a core is free, or nothing progresses."""

    def __init__(self, rank: int, memory: Arena, sums: RowSums, holds: Holds, log: ArenaLog) -> None:
        self._rank, self._holds, self._log = rank, holds, log
        self.reduction = Reduction(memory, sums, self._is_current, log.faults)
        is_small = len(sums.chunks) <= 1  # the rank that seals sums it alone: waking others would cost more
        log.helpers = 0 if is_small else max(1, cores() - 1)  # more would get in each other's way
        self._seen: tuple[tuple[int, int, int], float] = ((0, 0, 0), 0.0)  # a reduction's progress, and since when

    def help(self, sealed: Round) -> Event | None:
        """Joins the ranks that reduce. Returns the event that is due then, if any."""
        now, (before, since) = time.monotonic(), self._seen
        under_way, done = self.reduction.progress(sealed)
        seen = (tag(sealed), under_way, done)
        stands_still = seen == before
        if stands_still and now - since < SLICE_S:
            return None
        self._seen = (seen, now)
        if under_way > self._log.helpers and not stands_still:
            return None  # enough ranks are at it, and they progress
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


class SpareMemory:
    """Rarely used rows and slots that have memory: needed while a rank was late, and freed afterwards."""

    def __init__(self, rank: int, memory: Arena, holds: Holds, log: ArenaLog) -> None:
        self._rank, self._memory, self._holds, self._log = rank, memory, holds, log
        self.rows: dict[int, int] = {}  #: of this rank -> the round it was last written for
        self.slots: dict[int, int] = {}  #: -> the last round whose result was there

    def give_back(self, number: int) -> None:
        """Frees what was not used in the last rounds before this one. This rank must hold nothing."""
        layout, taken = self._memory.layout, self._log.ledger.open.rows
        for row in self._unused(self.rows, number):
            if row and (self._rank, row) not in taken:  # only this rank writes there
                del self.rows[row]
                self._memory.punch(self._memory.rows[self._rank, row].vector, layout.vector_bytes)
        for slot in self._unused(self.slots, number):
            del self.slots[slot]
            self._give_back_slot(slot)

    def _unused(self, used: dict[int, int], number: int) -> list[int]:
        return [place for place, last in used.items() if number - last >= UNUSED_ROUNDS]

    def _give_back_slot(self, slot: int) -> None:
        """As when writing: holds the slot first, and frees it only if the log then says that it is unused."""
        self._holds.take_idle(slot)
        try:
            self._log.look()
            agent = self._memory.layout.world
            is_used = self._holds.others_use(slot, 0, [*self._log.living(), agent])
            if slot in self._log.ledger.free_slots() and not is_used:
                self._memory.punch(self._memory.slots[slot].vector, self._memory.layout.vector_bytes)
        finally:
            self._holds.release()


class ArenaMemory:
    has_tensors = True

    def __init__(
        self,
        files: Files,
        shared: Arena,
        rank: int,
        vector: VectorLayout,
        published: VectorLayout,
        exchanged: Tensors,
        snapshots: SnapshotStore,
        holds: Holds,
        log: ArenaLog,
        reducing: Reducing | None,
        staging: Staging,
    ) -> None:
        self.files, self.arena = files, shared
        self._rank = rank
        self._layout = shared.layout
        self._vector, self._published = vector, published
        self._exchanged = [torch.empty_like(tensor, device="meta") for tensor in exchanged]
        self._offsets, _ = packed(exchanged)
        self.snapshots, self.holds = snapshots, holds
        self._log, self._faults = log, log.faults
        self.reducing = reducing
        self._staging = staging
        self._views: dict[int, list[torch.Tensor]] = {}
        self._spare = SpareMemory(rank, shared, holds, log)

    def close(self) -> None:
        self._staging.close()
        self.holds.release()
        arena.remove_directory(self.files)
        self.files.close()
        self._views.clear()
        self.arena.close()

    # -- contributions and results ---------------------------------------------------------------------------------

    def row(self, row: int) -> Tensors:
        return self._vector_at(self.arena.rows[self._rank, row].vector)

    async def deposited(self, row: int, described: tuple[bytes, bytes]) -> None:
        self._faults.at("depositing", self._log.ledger.round)
        self._spare.rows[row] = self._log.ledger.round
        self.arena.write_meta(self.arena.rows[self._rank, row].meta, join_meta(*described))

    def copy_row(self, row: int) -> tuple[torch.Tensor, bytes]:
        return self._bytes_of(row).clone(), self.arena.read_meta(self.arena.rows[self._rank, row].meta)

    def put_row(self, row: int, copy: tuple[torch.Tensor, bytes]) -> None:
        self._bytes_of(row).copy_(copy[0])
        self.arena.write_meta(self.arena.rows[self._rank, row].meta, copy[1])

    def reduce(self, sealed: Round) -> Event | None:
        """Does this rank's share; nothing if an agent reduces."""
        return None if self.reducing is None else self.reducing(sealed)

    async def hold(self, record: Round) -> None:
        self._spare.slots[record.slot] = record.number
        self.holds.take(record)

    def result(self, record: Round) -> Result:
        present, hyper = meta_of(record, self.arena.read_meta(self.arena.slots[record.slot].meta))
        self._faults.at("applying", record.number)
        return Result(record, self._vector_at(self.arena.slots[record.slot].vector), present, hyper)

    def release(self) -> None:
        self.holds.release()

    async def step_taken(self) -> None:
        """Nothing to simulate: the step has really taken its time."""

    # -- published weights -----------------------------------------------------------------------------------------

    async def publish(self, row: int, values: Tensors, notes: Notes, readers: Collection[int]) -> None:
        """Writes into one of this rank's rows. Readers read it in place, or their agents fetch it."""
        self._staging.down(self._row_at(row), values)
        self._note(row, notes)
        self._staging.landed()

    def put(self, row: int, values: Tensors | None) -> None:
        torch._foreach_copy_(self._row_at(row), list(values or ()))
        self._note(row, ())

    def notes(self, row: int) -> Notes:
        """Ordered before later reads, because the row may be overwritten."""
        numbers = self.arena.numbers(self._layout.notes(row), NOTES_BYTES // 8, "d")
        found = tuple(numbers[1 : 1 + int(numbers[0])])
        kernel.before_looking()
        return found

    async def mix(self, terms: Sequence[Term], together: bool, own: Own | None = None) -> Mixed:
        mine = None if own is None else own._replace(tensors=self._staging.host(own.tensors))
        return mixed([(self._row_at(p.row), self.notes(p.row), share) for p, share in terms], mine)

    async def mean(self, places: Sequence[Publication], ranks: Sequence[int], own: Tensors | None) -> Mixed:
        mine = None if own is None else self._staging.host(own)
        return mean_of([self._row_at(place.row) for place in places], mine)

    def copy(self, row: int) -> Mixed:
        return mean_of([self._row_at(row)])

    # -- snapshots, and what all ranks exchange when they meet -----------------------------------------------------

    async def save(self, buffer: int, contents: Contents, version: int, ledger: Ledger, position: int) -> None:
        self._faults.at("writing-snapshot", version)
        on_host = contents.made_of(self._staging.host(contents.everything))
        self.snapshots.write(buffer, on_host, ledger.to_state(version), position)

    def load(self, buffer: int) -> Contents | None:
        return self.snapshots.read(buffer)

    def empty(self, buffer: int, keeps_ledger: bool, keeps_base: bool) -> None:
        self.snapshots.empty(buffer, keeps_ledger, keeps_base)

    def tidy(self, number: int) -> None:
        self._spare.give_back(number)

    def leave(self, place: int, tensors: Tensors) -> None:
        """Leaves what this rank exchanges, before the event that announces it.

        Synchronisations use two places in turn: a rank can be at most one ahead of a rank that still reads, because the
        next one needs both.
        """
        for mine, shared in zip(self._staging.host(tensors), self.left(place, self._rank), strict=True):
            shared.copy_(mine)

    def left(self, where: int, rank: int) -> Tensors:
        """What a rank has left, in place. Shapes are always those of the start."""
        region = self.arena.region(self._layout.buffer_row(where, rank), self._layout.buffer_bytes)
        return [place(region, offset, like) for offset, like in zip(self._offsets, self._exchanged, strict=True)]

    # -- views -----------------------------------------------------------------------------------------------------

    def _bytes_of(self, row: int) -> torch.Tensor:
        return self.arena.region(self.arena.rows[self._rank, row].vector, self._vector.nbytes)

    def _note(self, row: int, notes: Notes) -> None:
        numbers = self.arena.numbers(self._layout.notes(row), 1 + len(notes), "d")
        numbers[0] = len(notes)
        for index, value in enumerate(notes):
            numbers[1 + index] = value

    def _row_at(self, row: int) -> list[torch.Tensor]:
        offset = self._layout.published(row)
        if offset not in self._views:
            region = self.arena.region(offset, self._layout.published_bytes)
            self._views[offset] = self._published.views(region)
            self._staging.register(self._views[offset], region)
        return self._views[offset]

    def _vector_at(self, offset: int) -> list[torch.Tensor]:
        if offset not in self._views:
            nbytes = self._layout.vector_bytes
            self.arena.touch(offset, nbytes)
            region = self.arena.region(offset, nbytes)
            self._views[offset] = self._vector.views(region)
            self._staging.register(self._views[offset], region)
        return self._views[offset]
