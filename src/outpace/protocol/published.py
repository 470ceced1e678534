"""Published weights: whose lie where, what is frozen for all, and which rows may be written.

Owns the rows of averaging strategies. Each rank has a few of its own: one is current, the others are spare and are
written in turn. A publication takes effect only if nobody changed the rank's weights meanwhile, so that two ranks can
swap without a lock. Like the ledger it belongs to, it is a pure fold: who reads the same log knows the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from outpace.protocol.events import Event, Kind
from outpace.protocol.members import ACTIVE, Member, Members
from outpace.protocol.pace import Pace
from outpace.protocol.paths import Paths
from outpace.protocol.rules import Publishing, Rules

NOTHING = -1  #: an iteration before the first
FROZEN_KEPT = 2  #: frozen iterations whose rows are remembered


class Publication(NamedTuple):
    """A rank's weights at some iteration: where they lie, and the how many-th of their rank they are."""

    rank: int
    iteration: int
    row: int
    serial: int


class Frozen(NamedTuple):
    """What was current of each member when an iteration was frozen."""

    number: int
    publications: dict[int, Publication]


@dataclass
class Shelf:
    """One rank's rows."""

    spares: list[int]
    current: Publication | None = None
    generation: int = 0  #: changes of what is current, by its own rank or by another's swap
    count: int = 0  #: publications so far
    first: int = 0  #: the iteration it takes part from
    read: int = NOTHING  #: it needs nothing more that was published up to here
    mixed: int = NOTHING  #: its last publication that was frozen
    kept: dict[int, Publication] = field(default_factory=dict)  #: the last ones, by iteration

    @property
    def iteration(self) -> int:
        """Of its last publication."""
        return max(self.kept, default=NOTHING)


class Published:
    """All ranks' rows after some prefix of the log."""

    def __init__(self, rules: Rules, members: Members, pace: Pace) -> None:
        publishing = rules.publishes or Publishing(rows=0)
        self.shelves: dict[int, Shelf] = {}
        self.frozen: dict[int, Frozen] = {}  #: the last ones, by number
        self.furthest = NOTHING  #: the furthest iteration that anybody has published
        self.open = 0  #: the iteration that is not frozen yet; with paths, the next number
        self.changed: list[int] = []  #: ranks whose state changed with the last event, while `collects`
        self.collects = False
        self.changes = 0  #: how often anything changed that somebody may wait for
        self.fresh: list[int] = []  #: who has published the open iteration, in order
        self.deadline_ns: int | None = None  #: when a waiter should freeze the open iteration
        self._publishing = publishing
        self._grace = rules.grace
        self._staleness = rules.max_staleness
        self._members = members
        self._pace = pace
        self._taking_part: set[int] = set()
        self._missing: set[int] = set()  # who takes part and has not published the open iteration
        self._paths = Paths(rules.world, publishing.edges)

    # -- reading ---------------------------------------------------------------------------------------------------

    def next_row(self, rank: int) -> int:
        """Where this rank writes what it publishes next."""
        return self.shelves[rank].spares[0]

    def of(self, rank: int, iteration: int) -> Publication | None:
        """What this rank published at an iteration, while it is remembered."""
        return self.shelves[rank].kept.get(iteration)

    def is_settled(self, rank: int, iteration: int) -> bool:
        """Whether nobody need wait for what this rank publishes at an iteration: it is there, or will not come."""
        shelf = self.shelves.get(rank)
        return shelf is None or rank not in self._taking_part or shelf.first > iteration or shelf.iteration >= iteration

    def has_read_all(self, rank: int, iteration: int) -> bool:
        """Whether this rank needs nothing any more that was published up to an iteration."""
        shelf = self.shelves.get(rank)
        gone = shelf is None or rank not in self._taking_part
        return gone or shelf is None or shelf.first > iteration or shelf.read >= iteration

    def is_whole(self, publication: Publication) -> bool:
        """Whether its row is not yet being written again, for readers whom nobody waits for."""
        shelf = self.shelves[publication.rank]
        return shelf.count - publication.serial < self._publishing.rows - 1

    def frozen_for(self, rank: int, iteration: int) -> Frozen | None:
        """The freeze that this rank's publication of an iteration is in, or the latest if it came too late for its own.

        None while that is not frozen.
        """
        if self._publishing.freeze == "path":
            found = self.frozen.get(self.shelves[rank].mixed)
            mine = None if found is None else found.publications.get(rank)
            return found if mine is not None and mine.iteration == iteration else None
        if self.open <= iteration:
            return None
        return self.frozen.get(iteration) or self.frozen[max(self.frozen)]

    def taking_part(self, rank: int) -> bool:
        """Whether this rank lives, has data left and waits in no meeting."""
        return rank in self._taking_part

    def now(self, ranks: Iterable[int] | None = None) -> Frozen:
        """What is current, of these ranks or of all who take part."""
        chosen = sorted(self._taking_part) if ranks is None else ranks
        current = {rank: self.shelves[rank].current for rank in chosen}
        return Frozen(self.open, {rank: c for rank, c in current.items() if c is not None})

    # -- folding ---------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> str:
        """Takes in what a living member says about its rows, and returns in words what that did."""
        if event.kind == Kind.PUBLISH:
            return self.publish(event.rank, event.step, event.round, event.time_ns)
        if event.kind == Kind.READ:
            return self.has_read(event.rank, event.step)
        if event.kind == Kind.SWAP:
            return self.swap(event.rank, event.place, event.round, event.step)
        if event.kind == Kind.WITHDRAW:
            return self.withdraw(event.rank, event.round)
        return f"ignored: event kind {event.kind} is not about published weights"

    def follow(self, member: Member) -> None:
        """Brings what is known of a member up to date after it changed."""
        rank = member.rank
        if rank not in self.shelves:
            rows = self._publishing.rows
            self.shelves[rank] = Shelf(list(range(rank * rows, (rank + 1) * rows)))
        takes_part = member.alive and member.state == ACTIVE
        if takes_part and rank not in self._taking_part:
            shelf = self.shelves[rank]
            shelf.first = max(shelf.first, shelf.iteration + 1, self._latest() + 1 if member.incarnation > 1 else 0)
            self._taking_part.add(rank)
            self._missing.add(rank)
            self._withdraw(shelf)
        elif not takes_part:
            self._taking_part.discard(rank)
            self._missing.discard(rank)
            self._paths.gone(rank)
        self._change([rank])
        self._settle()

    def go_on_from(self, iteration: int) -> None:
        """All ranks have met, and count their iterations from here."""
        if self._publishing.freeze == "first":
            self.open = max(self.open, iteration)

    def _withdraw(self, shelf: Shelf) -> None:
        """After a meeting or a restart a rank begins anew: nobody may average with what it published before."""
        if shelf.current is not None:
            shelf.spares.append(shelf.current.row)
            shelf.current = None
            shelf.generation += 1

    def _change(self, ranks: list[int]) -> None:
        self.changes += 1
        if self.collects:
            self.changed += ranks

    def _latest(self) -> int:
        return max(self.furthest, self.open - 1)

    def publish(self, rank: int, iteration: int, generation: int, now_ns: int) -> str:
        """A rank's next row holds its weights. No effect if another rank's swap changed them meanwhile."""
        shelf = self.shelves[rank]
        if generation != shelf.generation:
            return "ignored: its weights were changed meanwhile"
        if rank not in self._taking_part:
            return "ignored: it has left, or waits in a meeting"
        self._pace.arrived(rank, iteration, now_ns)
        self._put(rank, iteration, shelf.spares.pop(0))
        reason = self._tally(rank, iteration)
        if iteration >= self.open:
            self._missing.discard(rank)
        if self._publishing.freeze == "path" and self._paths.arrive(rank):
            self._freeze(self._paths.close())
        elif self._publishing.freeze == "first" and iteration == self.open:
            self._activate(rank, iteration, now_ns)
        self._settle()
        self._change([rank])
        return reason

    def has_read(self, rank: int, iteration: int) -> str:
        """A rank needs nothing more of what was published up to an iteration."""
        self.shelves[rank].read = max(self.shelves[rank].read, iteration)
        self._change([rank])
        return f"rank {rank} has read everything up to iteration {iteration}"

    def swap(self, rank: int, peer: int, generation: int, peers_generation: int) -> str:
        """Both become what the rank wrote into its two next rows. No effect if either changed meanwhile."""
        mine, theirs = self.shelves[rank], self.shelves.get(peer)
        if theirs is None or mine.current is None or theirs.current is None or peer not in self._taking_part:
            return "ignored: the peer has published nothing, or has left"
        if (generation, peers_generation) != (mine.generation, theirs.generation):
            return "ignored: one of them was changed meanwhile"
        own, given = mine.spares.pop(0), mine.spares.pop(0)
        mine.spares += [mine.current.row, theirs.current.row]
        for shelf, row in ((mine, own), (theirs, given)):
            assert shelf.current is not None
            shelf.current = shelf.current._replace(row=row)
            shelf.generation += 1
        self._change([rank, peer])
        return f"ranks {rank} and {peer} have the mean of both"

    def withdraw(self, rank: int, generation: int) -> str:
        """A rank takes its weights back. No effect if another rank's swap changed them meanwhile."""
        shelf = self.shelves[rank]
        if generation != shelf.generation:
            return "ignored: its weights were changed meanwhile"
        self._withdraw(shelf)
        self._change([rank])
        return f"nobody averages with rank {rank} before it publishes again"

    def freeze_after_grace(self, iteration: int) -> str:
        """Grace is over: who has not published the open iteration is in it with what it published last."""
        if iteration != self.open or self.deadline_ns is None:
            return "ignored: that iteration is frozen, or nobody has published it"
        self._freeze(sorted(self._taking_part))
        return f"iteration {iteration} frozen after grace"

    # -- details ---------------------------------------------------------------------------------------------------

    def _activate(self, rank: int, iteration: int, now_ns: int) -> None:
        """The first to publish an iteration activates it for all; grace begins."""
        self.fresh.append(rank)
        if self.deadline_ns is not None or self._is_meeting(iteration):
            return
        self._pace.quorum_met(iteration, now_ns, self._staleness)
        grace = self._pace.grace_ns() if self._grace == "auto" else int(float(self._grace) * 1e9)
        if grace:
            self.deadline_ns = now_ns + grace
        else:
            self._freeze(sorted(self._taking_part))

    def _put(self, rank: int, iteration: int, row: int) -> None:
        shelf = self.shelves[rank]
        if shelf.current is not None:
            shelf.spares.append(shelf.current.row)
        self.furthest = max(self.furthest, iteration)
        shelf.count += 1
        shelf.generation += 1
        shelf.current = shelf.kept[iteration] = Publication(rank, iteration, row, shelf.count)
        while len(shelf.kept) > self._publishing.rows:
            del shelf.kept[next(iter(shelf.kept))]

    def _tally(self, rank: int, iteration: int) -> str:
        """Only where iterations freeze can anybody be late."""
        tally = self._members.tallies[rank]
        lag = self.open - iteration if self._publishing.freeze == "first" else 0
        if lag <= 0:
            tally.on_time += 1
            return "on time"
        tally.carried += 1
        tally.late_by[lag] += 1
        return f"late by {lag} iterations: merged with what is there"

    def _is_meeting(self, iteration: int) -> bool:
        every = self._publishing.sync_every
        return every > 0 and (iteration + 1) % every == 0

    def _settle(self) -> None:
        """Freezes what everybody has published."""
        freeze = self._publishing.freeze
        if freeze == "first" and not self._missing and self._taking_part:
            if any(self.shelves[rank].iteration >= self.open for rank in self._taking_part):
                self._freeze(sorted(self._taking_part))
        elif freeze == "path" and self._paths.everybody_waits(self._taking_part):
            self._freeze(self._paths.close())

    def _freeze(self, ranks: list[int]) -> None:
        self.frozen[self.open] = self.now(ranks)
        while len(self.frozen) > FROZEN_KEPT * (len(self.shelves) if self._paths.edges else 1):
            del self.frozen[next(iter(self.frozen))]
        for rank in ranks:
            self.shelves[rank].mixed = self.open
        self.open += 1
        self.deadline_ns = None
        self._missing = {rank for rank in self._taking_part if self.shelves[rank].iteration < self.open}
        self.fresh = []
        self._change(ranks)

    # -- snapshots -------------------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        return {
            "shelves": [
                [rank, s.spares, s.current, s.generation, s.count, s.first, s.read, s.mixed, list(s.kept.values())]
                for rank, s in sorted(self.shelves.items())
            ],
            "frozen": [[f.number, list(f.publications.values())] for f in self.frozen.values()],
            "open": self.open,
            "furthest": self.furthest,
            "deadline_ns": self.deadline_ns,
            "fresh": self.fresh,
            "taking_part": sorted(self._taking_part),
            "missing": sorted(self._missing),
            "paths": self._paths.to_state(),
        }

    @classmethod
    def from_state(cls, rules: Rules, members: Members, pace: Pace, state: dict[str, Any]) -> Published:
        """The inverse of `to_state`."""
        published = cls(rules, members, pace)
        for rank, spares, current, generation, count, first, read, mixed, kept in state["shelves"]:
            pubs = [Publication(*row) for row in kept]
            now = None if current is None else Publication(*current)
            by_iteration = {p.iteration: p for p in pubs}
            shelf = Shelf(list(spares), now, generation, count, first, read, mixed, by_iteration)
            published.shelves[rank] = shelf
        for number, rows in state["frozen"]:
            pubs = [Publication(*row) for row in rows]
            published.frozen[number] = Frozen(number, {p.rank: p for p in pubs})
        published.open, published.deadline_ns, published.fresh = state["open"], state["deadline_ns"], state["fresh"]
        published.furthest = state["furthest"]
        published._taking_part, published._missing = set(state["taking_part"]), set(state["missing"])
        published._paths = Paths.from_state(rules.world, published._paths.edges, state["paths"])
        return published
