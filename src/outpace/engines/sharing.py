"""One rank's published weights: leaving them for others, reading theirs, and waiting for neither more than needed.

The same on every engine, like `rounds`: each brings only its rows, its log and its way to wait. What is current, frozen
or free to be written is decided by `protocol.published`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from outpace.engines.rounds import RoundEngine
from outpace.interface import Notes, Work
from outpace.protocol.events import Publish, Read, Swap, Withdraw
from outpace.protocol.hosts import address
from outpace.protocol.outcome import OutcomeKind
from outpace.protocol.published import EVERYBODY, Published
from outpace.protocol.rules import Rules
from outpace.protocol.shelves import Frozen, Publication, Shelf

Term = tuple[Publication, float]
UNDONE = (OutcomeKind.IGNORED, OutcomeKind.UNKNOWN)  #: a swap that did not take effect, or may not have, is done again


class SharingEngine(RoundEngine):
    """What averaging strategies call, in terms of what an engine brings."""

    def __init__(self, rank: int, rules: Rules) -> None:
        super().__init__(rank, rules)
        self._unread: deque[tuple[int, tuple[int, ...]]] = deque()  # own publications and who must read them
        self._based_on = 0  # the generation of this rank's weights that what it has now goes back to

    # -- what an engine brings -------------------------------------------------------------------------------------

    @abstractmethod
    async def local_step(self, work: Work) -> None:
        """Takes one step of the inner optimizer with this rank's own gradients."""

    @abstractmethod
    async def _write(self, row: int, notes: Notes) -> None:
        """Writes this rank's weights into a row of its own."""

    @abstractmethod
    def _notes_of(self, row: int) -> Notes:
        """The numbers that were published with a row."""

    @abstractmethod
    def _own_notes(self) -> Notes:
        """The numbers that go with this rank's weights as they are."""

    @abstractmethod
    def _sum(self, terms: Sequence[Term], own: float) -> Any:
        """The weighted sum of rows, and of this rank's weights, in private memory."""

    def _places(self, found: Iterable[Publication]) -> list[Publication]:
        """What an average is made of."""
        return list(found)

    def _mean(self, places: Sequence[Publication], with_own: bool) -> Any:
        """The mean of rows, or of rows and this rank's weights."""
        share = 1 / (len(places) + with_own)
        return self._sum([(place, share) for place in places], share if with_own else 0.0)

    @abstractmethod
    def _write_sum(self, row: int, summed: Any) -> None:
        """Writes a sum into a row of this rank's."""

    @abstractmethod
    def _take(self, summed: Any, notes: Notes) -> None:
        """Makes a sum this rank's weights."""

    @abstractmethod
    def _keep(self) -> None:
        """Makes this rank's weights, as it would publish them, an average of one."""

    @abstractmethod
    def _put_on_top(self, weights: Any) -> None:
        """Puts what this rank did since its last average on top of other weights."""

    def _has_published(self) -> None:
        """This rank's weights are with the others now, as they are."""
        return

    async def _until_each(self, ranks: Iterable[int], holds: Callable[[int], bool], purpose: str) -> None:
        """Waits until the log makes it true for each of these ranks."""
        wanted = list(ranks)
        await self._until(lambda: all(map(holds, wanted)), purpose)

    async def _travel(self, peers: Collection[int], together: bool) -> None:
        """Lets pass the time that reading these ranks' weights takes beyond what it really takes."""

    async def _travel_of_all(self, ranks: Sequence[int]) -> None:
        """The same for a sum that all of these make, this rank among them."""

    # -- what strategies call --------------------------------------------------------------------------------------

    async def publish(self, iteration: int, readers: Collection[int] = (), notes: Notes = ()) -> bool:
        """Leaves this rank's weights for others, once the row that is next has been read by all it was meant for."""
        self._look()
        await self._until_row_is_read()
        shelf = self._shelves[self.rank]
        generation, count = shelf.generation if shelf.current is None else self._based_on, shelf.count
        await self._write(self._published.next_row(self.rank), notes)
        self._append(Publish(self.rank, self.incarnation, iteration, generation, address(self.rules, readers)))
        if self._shelves[self.rank].count == count:
            return False
        self._based_on = generation + 1
        self._has_published()
        self._unread.append((iteration, tuple(readers)))
        return True

    async def gather(self, iteration: int, ranks: Iterable[int]) -> dict[int, Notes]:
        """Waits for these ranks' publications of an iteration, without those of ranks that have left."""
        wanted = sorted(ranks)
        purpose = f"for iteration {iteration} of ranks {wanted}"
        await self._until_each(wanted, lambda rank: self._published.is_settled(rank, iteration), purpose)
        found = {rank: self._published.of(rank, iteration) for rank in wanted if rank in self._shelves}
        return {rank: self._notes_of(place.row) for rank, place in found.items() if place is not None}

    async def keep(self) -> None:
        """Takes over its own weights, as an average of one."""
        self._keep()

    async def mix(
        self, weights: Mapping[tuple[int, int], float], read: int, together: bool = False, own: float = 0.0
    ) -> None:
        """Takes the weighted sum of publications that cannot change, because this rank is among their readers."""
        places = {key: self._published.of(*key) for key in sorted(weights)}
        terms = [(place, weights[key]) for key, place in places.items() if place is not None]
        await self._travel([place.rank for place, _ in terms if place.rank != self.rank], together)
        self._take(self._sum(terms, own), self._mixed_notes(terms, own))
        if any(place.rank != self.rank for place, _ in terms):
            self._append(Read(self.rank, self.incarnation, read))

    async def until_frozen(self, iteration: int) -> Frozen:
        """Waits for the freeze that this rank's publication of an iteration is in, or came too late for."""
        frozen = self._published.frozen_for(self.rank, iteration)
        while frozen is None:
            purpose = f"for iteration {iteration} to be frozen"
            await self._until_each(
                [self.rank], lambda me: self._published.frozen_for(me, iteration) is not None, purpose
            )
            frozen = self._published.frozen_for(self.rank, iteration)
        return frozen

    @property
    def open_iteration(self) -> int:
        """The first iteration that is not frozen, as far as this rank knows."""
        return self._published.open

    async def average(self, ranks: Sequence[int], frozen: Frozen | None, with_own: bool = False) -> bool:
        """Takes the mean of what was frozen of these ranks, or is current, unless it is being written again."""
        self._look()
        published = self._published
        places = self._places(published.current(ranks) if frozen is None else frozen.among(ranks))
        stamp = published.stamp if frozen is None else frozen.stamp
        is_held = frozen is not None and published.is_barrier(frozen.number)  # until this rank, too, has read it
        if any(place[0] != self.rank for place in places):
            await self._travel_of_all(ranks)
            mean = self._mean(places, with_own)
            self._look()
            if not is_held and not self._published.are_whole(ranks, stamp):
                return False
            self._take(mean, ())
        if frozen is not None and is_held:
            self._append(Read(self.rank, self.incarnation, frozen.number))
        return True

    async def mix_frozen(self, frozen: Frozen, weights: Mapping[int, float], own: float = 0.0) -> bool:
        """Takes the weighted sum of what was frozen, unless it is being written again."""
        terms = [(frozen.publications[rank], weight) for rank, weight in sorted(weights.items())]
        await self._travel([place.rank for place, _ in terms if place.rank != self.rank], together=True)
        summed, notes = self._sum(terms, own), self._mixed_notes(terms, own)
        self._look()
        if not all(self._published.is_whole(place) for place, _ in terms):
            return False
        self._take(summed, notes)
        return True

    async def swap(self, peer: int) -> bool:
        """Redone until neither changed meanwhile. Each time it has to be, another rank's swap went through."""
        while True:
            self._look()
            mine, theirs = self._shelves[self.rank], self._shelves.get(peer)
            if mine.current is None or theirs is None or theirs.current is None:
                return False
            if not self._published.taking_part(peer):
                return False
            generations, rows = (mine.generation, theirs.generation), mine.spares[:2]
            terms = [(mine.current, 0.5), (theirs.current, 0.5)]
            await self._travel([peer], together=False)
            summed, notes = self._sum(terms, 0.0), self._mixed_notes(terms)
            for row in rows:
                self._write_sum(row, summed)
            if self._append(Swap(self.rank, self.incarnation, peer, *generations)).kind not in UNDONE:
                self._based_on = generations[0] + 1
                self._take(summed, notes)
                return True

    async def rebase(self) -> None:
        """Puts what this rank did since its last average on top of its weights as others have changed them."""
        while True:
            self._look()
            shelf = self._shelves[self.rank]
            generation, current = shelf.generation, shelf.current
            if current is None:
                return
            copied = self._sum([(current, 1.0)], 0.0)
            self._look()
            if self._shelves[self.rank].generation == generation:
                self._based_on = generation
                self._put_on_top(copied)
                return

    async def withdraw(self) -> None:
        """Takes this rank's weights back, with all that others made of them. Redone if one of them swaps meanwhile."""
        while True:
            await self.rebase()
            if self._shelves[self.rank].current is None:
                return
            self._append(Withdraw(self.rank, self.incarnation, self._based_on))

    # -- details ---------------------------------------------------------------------------------------------------

    @property
    def _published(self) -> Published:
        return self.ledger.published

    @property
    def _shelves(self) -> Mapping[int, Shelf]:
        return self.ledger.published.shelves

    def _go_on_from(self, steps: int) -> None:
        """All have met: they count their steps from here together, and nobody reads what was published before."""
        self.steps = max(self.steps, steps, self._shelves[self.rank].first)
        self._unread.clear()
        self._pieces_at = -1  # a checkpoint may bring back a version that pieces were given at

    async def _until_row_is_read(self) -> None:
        """The row written next may hold a publication that somebody still reads."""
        rows = 0 if self.rules.publishes is None else self.rules.publishes.rows
        while len(self._unread) >= rows:
            iteration, readers = self._unread[0]
            if readers:
                await self._until_all_have_read(iteration, readers)
            self._unread.popleft()
        if not self._published.may_write(self.rank):
            purpose = "for all to read what all had published"
            await self._until_each([EVERYBODY], lambda _: self._published.may_write(self.rank), purpose)

    async def _until_all_have_read(self, iteration: int, readers: Iterable[int]) -> None:
        purpose = f"for iteration {iteration} to be read"
        await self._until_each(readers, lambda rank: self._published.has_read_all(rank, iteration), purpose)

    def _mixed_notes(self, terms: Sequence[Term], own: float = 0.0) -> Notes:
        notes = [(self._notes_of(place.row), weight) for place, weight in terms]
        if own:
            notes.append((self._own_notes(), own))
        shortest = min((len(values) for values, _ in notes), default=0)
        return tuple(sum(values[i] * weight for values, weight in notes) for i in range(shortest))
