"""Published weights: in which row each rank's lie, what is frozen for all, and which rows may be written.

Owns the rows of averaging strategies. Each rank has a few: one is current, the others are spare and are written in
turn. A publication takes effect only if nobody changed the rank's weights meanwhile, so that two ranks can swap without
a lock. Like the ledger it belongs to, it is a pure fold: two that read the same log are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outpace.protocol.events import Outcome, OutcomeKind, Publish, Read, Swap, Withdraw, ignored, taken
from outpace.protocol.members import ACTIVE, AWAY, Member, Members
from outpace.protocol.pace import Pace
from outpace.protocol.path_search import PathSearch
from outpace.protocol.rules import HOST_MEANS, Publishing, Rules
from outpace.protocol.state import Part

NOTHING = -1  #: an iteration before the first
FROZEN_KEPT = 2  #: frozen iterations whose rows are remembered
EVERYBODY = -1  #: in place of a changed rank: all have read the last barrier


class Publication(NamedTuple):
    rank: int
    iteration: int
    row: int
    serial: int  #: counts the publications of its rank, from 1


@dataclass(eq=False)
class Frozen:
    """The current publications at the time an iteration was frozen."""

    number: int
    publications: dict[int, Publication]
    stamp: int = -1  #: `Published.stamp` at that time
    _among: dict[Sequence[int], list[Publication]] = field(default_factory=dict, init=False)  # cache for all ranks

    def has(self, rank: int, iteration: int) -> bool:
        """Whether it holds this rank's publication of that iteration, and not of an older one."""
        mine = self.publications.get(rank)
        return mine is not None and mine.iteration == iteration

    def among(self, ranks: Sequence[int]) -> list[Publication]:
        found = self._among.get(ranks)
        if found is None:
            there = self.publications
            found = self._among[ranks] = [there[rank] for rank in ranks if rank in there]
        return found


@dataclass
class Shelf:
    spares: list[int]
    current: Publication | None = None
    generation: int = 0  #: how often `current` was changed, by its own rank or by another's swap
    count: int = 0  #: publications so far
    first: int = 0  #: the iteration from which it takes part
    read: int = NOTHING  #: it has read everything it needs up to this iteration
    mixed: int = NOTHING  #: with path search, its last publication that was frozen
    iteration: int = NOTHING  #: of its last publication
    life: int = 0  #: the incarnation that takes part, or did last
    is_away: bool = False  #: it waits in another of its optimizers
    kept: dict[int, Publication] = field(default_factory=dict)  #: its last publications by iteration
    stamp: int = 0  #: `Published.stamp` after its last publication
    stamp_before: int = 0  #: and after the previous one
    left: int = NOTHING  #: `Published.stamp` when it last stopped taking part

    def put(self, rank: int, iteration: int) -> None:
        row = self.spares.pop(0)
        self.clear()
        self.count += 1
        self.generation += 1
        self.iteration = max(self.iteration, iteration)
        rows = len(self.spares) + 1
        self.current = self.kept[iteration] = Publication(rank, iteration, row, self.count)
        while len(self.kept) > rows:
            del self.kept[next(iter(self.kept))]

    def clear(self) -> None:
        """Makes nothing current; the row goes to the end of the spares."""
        if self.current is not None:
            self.spares.append(self.current.row)
            self.current = None


class Barrier(Part):
    """Iterations in which all ranks wait for each other, and keep their rows until all have read them."""

    number: int
    unread: set[int]  #: ranks that were in it and have not read it yet
    _rows: dict[int, int]  # by rank

    def __init__(self, every: int) -> None:
        self._every = every  # iterations; 0 for never
        self.number, self.unread, self._rows = NOTHING, set(), {}

    def is_at(self, iteration: int) -> bool:
        return self._every > 0 and (iteration + 1) % self._every == 0

    def holds(self, rank: int, row: int) -> bool:
        """Whether a rank must not write this row of its own yet, because somebody still has to read it."""
        return bool(self.unread) and self._rows.get(rank) == row

    def begin(self, frozen: Frozen) -> None:
        """All have arrived, and so have read the previous one."""
        places = frozen.publications.values()
        self.number = frozen.number
        self.unread = {place.rank for place in places if place.iteration == frozen.number}
        self._rows = {place.rank: place.row for place in places}

    def has_read(self, rank: int) -> bool:
        """A rank has read it, or never will. True if it was the last one missing."""
        if rank not in self.unread:
            return False
        self.unread.discard(rank)
        return not self.unread


class Published(Part):
    shelves: dict[int, Shelf]
    frozen: dict[int, Frozen]  #: the last ones, by number
    furthest: int  #: the furthest iteration that any rank has published
    open: int  #: the iteration that is not frozen yet; with path search, the next number
    stamp: int  #: publications of all ranks so far
    fresh: list[int]  #: ranks that have published the open iteration, in order
    deadline_ns: int | None  #: when a waiting rank should freeze the open iteration
    _taking_part: set[int]
    _missing: set[int]  # ranks that take part and have not published the open iteration
    _barrier: Barrier
    _twice: int  # from this stamp on, no rank has published twice
    _met: int  # the iteration from which all continued after the last synchronisation
    _paths: PathSearch

    def __init__(self, rules: Rules, members: Members, pace: Pace) -> None:
        publishing = rules.publishes or Publishing(rows=0)
        self.shelves, self.frozen, self.fresh = {}, {}, []
        self.furthest, self.open, self.stamp, self._twice = NOTHING, 0, 0, 0
        self.deadline_ns = None
        self._met = 0
        self._taking_part, self._missing = set(), set()
        self._barrier = Barrier(publishing.sync_every)
        self._paths = PathSearch(rules.world, publishing.edges)
        self.changed: list[int] = []  #: ranks whose state changed with the last event, if `collects`
        self.collects = False
        self.changes = 0  #: how often anything changed that a rank may wait for
        self._publishing = publishing
        self._grace = rules.grace
        self._staleness = rules.max_staleness
        self._first_mean = publishing.rows * rules.world
        self._members = members
        self._pace = pace
        self._there: list[Publication | None] = [None] * rules.world  # by rank, what is current and not too old

    # -- reading ---------------------------------------------------------------------------------------------------

    def next_row(self, rank: int) -> int:
        return self.shelves[rank].spares[0]

    def of(self, rank: int, iteration: int) -> Publication | None:
        """What this rank published at an iteration, as long as it is remembered."""
        return self.shelves[rank].kept.get(iteration)

    def is_settled(self, rank: int, iteration: int) -> bool:
        """Whether this rank has published the iteration, or never will."""
        shelf = self.shelves.get(rank)
        return shelf is None or rank not in self._taking_part or shelf.first > iteration or shelf.iteration >= iteration

    def has_read_all(self, rank: int, iteration: int) -> bool:
        """Whether this rank has read everything it needs up to an iteration."""
        shelf = self.shelves.get(rank)
        gone = shelf is None or rank not in self._taking_part
        return gone or shelf is None or shelf.first > iteration or shelf.read >= iteration

    def is_whole(self, publication: Publication) -> bool:
        """Whether its row is not being overwritten yet. For readers that writers do not wait for."""
        return self.shelves[publication.rank].count - publication.serial < self._publishing.rows - 1

    def are_whole(self, ranks: Iterable[int], stamp: int) -> bool:
        """Whether everything that was current of these ranks at a stamp is: none of them has published twice since.
        Checks each rank only if any has, so that the cost does not grow with the world."""
        shelves = self.shelves
        return stamp >= self._twice or all(shelves[rank].stamp_before <= stamp for rank in ranks)

    def is_barrier(self, iteration: int) -> bool:
        """Whether all ranks wait for each other in this iteration, and keep its rows until all have read them."""
        return self._barrier.is_at(iteration)

    def may_write(self, rank: int) -> bool:
        """Whether all have read the barrier's publication, if this rank's next row holds it."""
        return not self._barrier.holds(rank, self.next_row(rank))

    def mean_row(self, number: int) -> int:
        """The row for a host's group mean of a frozen iteration, if agents compute it."""
        return self._first_mean + (HOST_MEANS - 1 if self.is_barrier(number) else number % (HOST_MEANS - 1))

    def mean_rows(self) -> list[int]:
        return list(range(self._first_mean, self._first_mean + HOST_MEANS))

    def is_mean_of_use(self, number: int) -> bool:
        """Whether a late rank may continue from a mean: neither too old nor from before the last synchronisation."""
        return number >= self._met and not self._is_too_old(number)

    def frozen_for(self, rank: int, iteration: int) -> Frozen | None:
        """The freeze that contains this rank's publication of an iteration, or the latest if it came too late for that;
        None while the iteration is not frozen."""
        if self._publishing.freeze == "path":
            found = self.frozen.get(self.shelves[rank].mixed)
            return found if found is not None and found.has(rank, iteration) else None
        if self.open <= iteration:
            return None
        return self.frozen.get(iteration) or self.frozen[max(self.frozen)]

    def taking_part(self, rank: int) -> bool:
        """Whether this rank is alive, has data left and is not in `synchronize`."""
        return rank in self._taking_part

    def took_part(self, rank: int, when: int) -> bool:
        """Whether this rank took part when rank `when` last published, whatever has become of it since."""
        return rank in self._taking_part or self.shelves[rank].left >= self.shelves[when].stamp

    def current(self, ranks: Iterable[int]) -> Iterator[Publication]:
        """The current publications of these ranks, as far as they take part, without those that are too old."""
        return filter(None, map(self._there.__getitem__, ranks))

    # -- folding ---------------------------------------------------------------------------------------------------

    def apply(self, event: Publish | Read | Swap | Withdraw) -> Outcome:
        if isinstance(event, Publish):
            return self.publish(event.rank, event.iteration, event.generation, event.time_ns)
        if isinstance(event, Read):
            return self.has_read(event.rank, event.iteration)
        if isinstance(event, Swap):
            return self.swap(event.rank, event.peer, event.generation, event.peer_generation)
        return self.withdraw(event.rank, event.generation)

    def follow(self, member: Member) -> None:
        rank = member.rank
        if rank not in self.shelves:
            rows = self._publishing.rows
            self.shelves[rank] = Shelf(list(range(rank * rows, (rank + 1) * rows)))
        takes_part = member.alive and member.state == ACTIVE
        if rank in self._taking_part and (not takes_part or self.shelves[rank].life != member.incarnation):
            self._leave(rank)
        if takes_part and rank not in self._taking_part:
            self._enter(member)
        self.shelves[rank].is_away = member.alive and member.state == AWAY
        self._change([rank])
        self._settle()

    def _leave(self, rank: int) -> None:
        self._taking_part.discard(rank)
        self.shelves[rank].left = self.stamp
        self._missing.discard(rank)
        self._show(rank)
        self._has_read(rank)
        self._paths.gone(rank)

    def _enter(self, member: Member) -> None:
        """A rank starts to take part, or does again after a restart, a synchronisation or a wait elsewhere."""
        rank, shelf = member.rank, self.shelves[member.rank]
        was_away = shelf.is_away and shelf.life == member.incarnation
        shelf.life = member.incarnation
        shelf.first = max(shelf.first, shelf.iteration + 1, self._first_for(member, was_away))
        self._taking_part.add(rank)
        if shelf.first <= self.open:
            self._missing.add(rank)
        if was_away:  # its publication may hold a swap that it has not read yet
            self._show(rank)
        else:
            self._withdraw(rank)

    def go_on_from(self, iteration: int) -> None:
        """All ranks have synchronised, and continue from this iteration."""
        if self._publishing.freeze == "first":
            self.open = self._met = max(self.open, iteration)

    def _withdraw(self, rank: int) -> None:
        """Takes a rank's publication back: nobody may average with it any more."""
        shelf = self.shelves[rank]
        if shelf.current is not None:
            shelf.clear()
            shelf.generation += 1
        self._show(rank)

    def _show(self, rank: int) -> None:
        place = self.shelves[rank].current
        is_there = place is not None and rank in self._taking_part and not self._is_too_old(place.iteration)
        self._there[rank] = place if is_there else None

    def _change(self, ranks: list[int]) -> None:
        self.changes += 1
        if self.collects:
            self.changed += ranks

    def _first_for(self, member: Member, was_away: bool) -> int:
        if self._publishing.freeze == "first":
            return self.open
        return max(self.furthest + 1, self.open) if member.incarnation > 1 or was_away else 0

    def publish(self, rank: int, iteration: int, generation: int, now_ns: int) -> Outcome:
        """Makes a rank's next row current. No effect if another rank's swap changed its weights meanwhile."""
        shelf = self.shelves[rank]
        if generation != shelf.generation:
            return ignored("its weights were changed meanwhile")
        if rank not in self._taking_part:
            return ignored("it has left, or waits in synchronize()")
        self._pace.arrived(rank, iteration, now_ns)
        self._put(rank, iteration)
        outcome = self._tally(rank, iteration)
        if iteration >= self.open:
            self._missing.discard(rank)
        if self._publishing.freeze == "path" and self._paths.arrive(rank):
            self._freeze(self._paths.close())
        elif self._publishing.freeze == "first" and iteration == self.open:
            self._activate(rank, iteration, now_ns)
        self._settle()
        self._change([rank])
        return outcome

    def has_read(self, rank: int, iteration: int) -> Outcome:
        self.shelves[rank].read = max(self.shelves[rank].read, iteration)
        if iteration >= self._barrier.number:
            self._has_read(rank)
        self._change([rank])
        return taken(f"rank {rank} has read everything up to iteration {iteration}")

    def swap(self, rank: int, peer: int, generation: int, peers_generation: int) -> Outcome:
        """Makes the rank's next two rows current, one for each. No effect if either rank changed meanwhile."""
        mine, theirs = self.shelves[rank], self.shelves.get(peer)
        if theirs is None or mine.current is None or theirs.current is None or peer not in self._taking_part:
            return ignored("the peer has published nothing, or has left")
        if (generation, peers_generation) != (mine.generation, theirs.generation):
            return ignored("one of them was changed meanwhile")
        own, given = mine.spares.pop(0), mine.spares.pop(0)
        mine.spares += [mine.current.row, theirs.current.row]
        for shelf, row in ((mine, own), (theirs, given)):
            assert shelf.current is not None
            shelf.current = shelf.current._replace(row=row)
            shelf.generation += 1
            self._show(shelf.current.rank)
        self._change([rank, peer])
        return taken(f"ranks {rank} and {peer} have the mean of both")

    def withdraw(self, rank: int, generation: int) -> Outcome:
        """A rank takes its weights back. No effect if another rank's swap changed them meanwhile."""
        shelf = self.shelves[rank]
        if generation != shelf.generation:
            return ignored("its weights were changed meanwhile")
        self._withdraw(rank)
        self._change([rank])
        return taken(f"nobody averages with rank {rank} before it publishes again")

    def freeze_after_grace(self, iteration: int) -> Outcome:
        """Grace is over: a rank that has not published the open iteration takes part with its last publication."""
        if iteration != self.open or self.deadline_ns is None:
            return ignored("that iteration is frozen, or nobody has published it")
        self._freeze(sorted(self._taking_part))
        return taken(f"iteration {iteration} frozen after grace")

    # -- details ---------------------------------------------------------------------------------------------------

    def _activate(self, rank: int, iteration: int, now_ns: int) -> None:
        """The first rank to publish an iteration activates it for all; grace begins."""
        self.fresh.append(rank)
        if self.deadline_ns is not None or self.is_barrier(iteration):
            return
        self._pace.quorum_met(iteration, now_ns, self._staleness)
        grace = self._pace.grace_ns() if self._grace == "auto" else int(float(self._grace) * 1e9)
        if grace:
            self.deadline_ns = now_ns + grace
        else:
            self._freeze(sorted(self._taking_part))

    def _put(self, rank: int, iteration: int) -> None:
        shelf = self.shelves[rank]
        self._twice = max(self._twice, shelf.stamp)
        self.stamp += 1
        self.furthest = max(self.furthest, iteration)
        shelf.put(rank, iteration)
        shelf.stamp_before, shelf.stamp = shelf.stamp, self.stamp
        self._show(rank)

    def _is_too_old(self, iteration: int) -> bool:
        """By the number of iterations frozen since."""
        most = self._publishing.max_age
        return most > 0 and self.open - iteration > most

    def _tally(self, rank: int, iteration: int) -> Outcome:
        """Counts a publication as on time, carried or dropped. None is late where iterations do not freeze."""
        tally = self._members.tallies[rank]
        lag = self.open - iteration if self._publishing.freeze == "first" else 0
        if lag <= 0:
            tally.on_time += 1
            return Outcome(OutcomeKind.ON_TIME, "on time")
        if self._is_too_old(iteration):
            tally.dropped += 1
            bound = self._publishing.max_age
            return Outcome(OutcomeKind.DROPPED, f"late by {lag} iterations: dropped, the bound is {bound}")
        tally.carried += 1
        tally.late_by[lag] += 1
        return Outcome(OutcomeKind.CARRIED, f"late by {lag} iterations: merged with what is there")

    def _has_read(self, rank: int) -> None:
        """A rank has read the last barrier's publications, or never will."""
        if self._barrier.has_read(rank):
            self._change([EVERYBODY])

    def _settle(self) -> None:
        freeze = self._publishing.freeze
        if freeze == "first" and not self._missing and self._taking_part:
            if any(self.shelves[rank].iteration >= self.open for rank in self._taking_part):
                self._freeze(sorted(self._taking_part))
        elif freeze == "path" and self._paths.everybody_waits(self._taking_part):
            self._freeze(self._paths.close())

    def _freeze(self, ranks: list[int]) -> None:
        number, there = self.open, self._there
        if self._publishing.once and self.frozen:
            before = self.frozen[max(self.frozen)].stamp
            ranks = [rank for rank in ranks if self.shelves[rank].stamp > before]
        self.frozen[number] = frozen = Frozen(number, {p[0]: p for p in map(there.__getitem__, ranks) if p}, self.stamp)
        if self.is_barrier(number):
            self._barrier.begin(frozen)
        self._forget_frozen()
        self.open += 1
        self.deadline_ns = None
        self.fresh = []
        if self._publishing.freeze == "path":
            for rank in ranks:
                self.shelves[rank].mixed = number
        else:
            self._await_next(frozen)
        self._change(ranks)

    def _await_next(self, frozen: Frozen) -> None:
        """Notes which ranks are missing from the next iteration, and drops publications that are now too old."""
        shelves = self.shelves
        self._missing = {rank for rank in self._taking_part if shelves[rank].iteration <= frozen.number}
        for place in filter(None, self._there):
            if self._is_too_old(place[1]):
                self._there[place[0]] = None

    def _forget_frozen(self) -> None:
        """Forgets all but the last ones. A barrier is kept until all have read it."""
        kept = FROZEN_KEPT * (len(self.shelves) if self._paths.edges else 1)
        oldest = [number for number in self.frozen if number != self._barrier.number or not self._barrier.unread]
        for number in oldest[: max(0, len(oldest) - kept)]:
            del self.frozen[number]

    def _restore_what_follows(self) -> None:
        for rank in self.shelves:
            self._show(rank)
