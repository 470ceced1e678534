"""One rank's published weights: leaving them for others and reading theirs, with as little waiting as possible.

`protocol.published` decides what is current, frozen or free to be written. What a strategy publishes, and what it does
with a mean, is in its own file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from outpace.engines.memory import Term
from outpace.interface import Mixed, Notes, Own, Tensors
from outpace.protocol.events import OutcomeKind, Publish, Read, Swap, Withdraw
from outpace.protocol.hosts import address
from outpace.protocol.published import EVERYBODY, Frozen, Publication, Published, Shelf

if TYPE_CHECKING:
    from outpace.engines.engine import Engine

UNDONE = (OutcomeKind.IGNORED, OutcomeKind.UNKNOWN)  #: a swap that had, or may have had, no effect is repeated


class PublishedWeights:
    def __init__(self, engine: Engine) -> None:
        self._engine, self._log, self._memory = engine, engine.log, engine.memory
        self._rank = engine.rank
        self._unread: deque[tuple[int, tuple[int, ...]]] = deque()  # own publications, and which ranks must read them
        self._based_on = 0  # the generation of the published weights that this rank's current weights build on

    async def publish(self, iteration: int, values: Tensors, readers: Collection[int] = (), notes: Notes = ()) -> bool:
        self._log.look()
        await self._until_row_is_read()
        rules = self._engine.rules
        reading = readers or rules.neighbours.get(self._rank, ())
        await self._memory.publish(self._published.next_row(self._rank), values, notes, reading)
        shelf = self._own_shelf
        generation, count = shelf.generation if shelf.current is None else self._based_on, shelf.count
        hosts = address(rules, reading)
        covered = self._engine.draws.covered
        self._log.append(Publish(self._rank, self._log.incarnation, iteration, generation, hosts, covered))
        if self._own_shelf.count == count:
            return False
        self._based_on = generation + 1
        self._unread.append((iteration, tuple(readers)))
        return True

    async def gather(self, iteration: int, ranks: Iterable[int]) -> dict[int, Notes]:
        wanted = sorted(ranks)
        purpose = f"for iteration {iteration} of ranks {wanted}"
        await self._engine.until_each(wanted, lambda rank: self._published.is_settled(rank, iteration), purpose)
        published = self._published
        found = {rank: published.of(rank, iteration) for rank in wanted if rank in published.shelves}
        return {rank: self._memory.notes(place.row) for rank, place in found.items() if place is not None}

    def forget_unread(self) -> None:
        self._unread.clear()

    async def mix(
        self, shares: Mapping[tuple[int, int], float], read: int, together: bool = False, own: Own | None = None
    ) -> Mixed:
        """As in the interface. The rows cannot change, because this rank is among their readers."""
        places = {key: self._published.of(*key) for key in sorted(shares)}
        terms = [(place, shares[key]) for key, place in places.items() if place is not None]
        mixed = await self._memory.mix(terms, together, own)
        if any(place.rank != self._rank for place, _ in terms):
            self._log.append(Read(self._rank, self._log.incarnation, read))
        return mixed

    async def mix_frozen(self, frozen: Frozen, shares: Mapping[int, float]) -> Mixed | None:
        terms: list[Term] = [(frozen.publications[rank], share) for rank, share in sorted(shares.items())]
        mixed = await self._memory.mix(terms, together=True)
        self._log.look()
        return mixed if all(self._published.is_whole(place) for place, _ in terms) else None

    async def average(
        self, ranks: Sequence[int], frozen: Frozen | None, own: Tensors | None = None, of_others: bool = False
    ) -> Mixed | None:
        self._log.look()
        if self._engine.rules.averages_hosts:
            return await self._host_mean(frozen, own)
        published = self._published
        found = published.current(ranks) if frozen is None else frozen.among(ranks)
        # without tensors, two of them are enough to tell whether there is anybody else
        places = list(found if self._memory.has_tensors else islice(found, 2))
        stamp = published.stamp if frozen is None else frozen.stamp
        is_held = frozen is not None and published.is_barrier(frozen.number)  # its rows wait until this rank has read
        mean = Mixed()
        others = [place for place in places if place[0] != self._rank]
        if others:
            mean = await self._memory.mean(others if of_others else places, ranks, own)
            self._log.look()
            if not is_held and not self._published.are_whole(ranks, stamp):
                return None
        if frozen is not None and is_held:
            self._log.append(Read(self._rank, self._log.incarnation, frozen.number))
        return mean

    async def _host_mean(self, frozen: Frozen | None, own: Tensors | None) -> Mixed | None:
        """The mean that this host's agent computed with its group for a frozen iteration, or its latest one."""
        published, memory = self._published, self._memory
        rows = published.mean_rows() if frozen is None else [published.mean_row(frozen.number)]
        there = {row: notes for row in rows if len(notes := memory.notes(row)) == 2}
        row, (number, count) = max(there.items(), key=lambda mean: mean[1], default=(-1, (-1.0, 0.0)))
        if frozen is not None and number != frozen.number:
            return None
        if frozen is None and not (number >= 0 and published.is_mean_of_use(int(number))):
            return Mixed()
        share = count / (count + (own is not None))
        given = None if own is None else Own(1 - share, own)
        mixed = await memory.mix([(Publication(self._rank, int(number), row, 0), share)], together=True, own=given)
        self._log.look()
        if memory.notes(row) != there[row]:
            return None
        if frozen is not None and published.is_barrier(frozen.number):
            self._log.append(Read(self._rank, self._log.incarnation, frozen.number))
        return Mixed(mixed.tensors)

    async def until_frozen(self, iteration: int) -> Frozen:
        """Waits for the freeze that contains this rank's publication of an iteration, or that it came too late for."""
        frozen = self._published.frozen_for(self._rank, iteration)
        while frozen is None:
            purpose = f"for iteration {iteration} to be frozen"
            await self._engine.until_each(
                [self._rank], lambda me: self._published.frozen_for(me, iteration) is not None, purpose
            )
            frozen = self._published.frozen_for(self._rank, iteration)
        return frozen

    @property
    def open_iteration(self) -> int:
        return self._published.open

    async def swap(self, peer: int) -> Mixed | None:
        """Retries until neither rank changed meanwhile. Each retry means that another rank's swap went through."""
        while True:
            self._log.look()
            mine, theirs = self._own_shelf, self._published.shelves.get(peer)
            if mine.current is None or theirs is None or theirs.current is None:
                return None
            if not self._published.taking_part(peer):
                return None
            generations, rows = (mine.generation, theirs.generation), mine.spares[:2]
            mean = await self._memory.mix([(mine.current, 0.5), (theirs.current, 0.5)], together=False)
            for row in rows:
                self._memory.put(row, mean.tensors)
            if self._log.append(Swap(self._rank, self._log.incarnation, peer, *generations)).kind not in UNDONE:
                self._based_on = generations[0] + 1
                return mean

    async def changed_by_others(self) -> Mixed | None:
        while True:
            self._log.look()
            shelf = self._own_shelf
            generation, current = shelf.generation, shelf.current
            if current is None:
                return None
            copied = self._memory.copy(current.row)
            self._log.look()
            if self._own_shelf.generation == generation:
                self._based_on = generation
                return copied

    async def withdraw(self) -> None:
        self._log.append(Withdraw(self._rank, self._log.incarnation, self._based_on))

    @property
    def _published(self) -> Published:
        return self._log.ledger.published

    @property
    def _own_shelf(self) -> Shelf:
        return self._log.ledger.published.shelves[self._rank]

    async def _until_row_is_read(self) -> None:
        """The next row may hold a publication that a rank still has to read."""
        rules = self._engine.rules
        rows = 0 if rules.publishes is None else rules.publishes.rows
        while len(self._unread) >= rows:
            iteration, readers = self._unread[0]
            if readers:
                await self._until_all_have_read(iteration, readers)
            self._unread.popleft()
        if not self._published.may_write(self._rank):
            purpose = "for all to read what all had published"
            await self._engine.until_each([EVERYBODY], lambda _: self._published.may_write(self._rank), purpose)

    async def _until_all_have_read(self, iteration: int, readers: Iterable[int]) -> None:
        purpose = f"for iteration {iteration} to be read"
        await self._engine.until_each(readers, lambda rank: self._published.has_read_all(rank, iteration), purpose)
