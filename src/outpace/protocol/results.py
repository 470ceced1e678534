"""Results in their slots and snapshots in their buffers. Owns who may write which of them, and what is given up when.

Must never decide what is in a round: it is told of the one being reduced, and of those that are complete. Knows
nothing of what a snapshot contains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import copy
from typing import NamedTuple

from outpace.protocol.round import Round
from outpace.protocol.rules import Rules
from outpace.protocol.state import Part

_NO_RANK = -1  # whoever copies a snapshot from another host has no claim
_NOBODY = -1  # no incarnation: a claim that can be given up, but not completed


class Results(Part):
    """The results that somebody still needs, each in a slot of its own: those that not every rank has applied.

    Arrivals say which version their rank has. A rank that is expected back needs what it needed when it died.
    """

    completed: dict[int, Round]  #: the rounds whose results are kept
    _places: dict[int, int]  # slots of older ones, kept, too, whose records are not known here
    oldest: int  #: no result of a round before this one is kept
    applied: dict[int, int]  #: rank -> the version it is known to have
    new: set[int]  #: ranks that have joined, and have not said yet from which version they go on

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        #: result slots: those kept, one being written, and one for each rank that may be stopped holding one
        self.slots = rules.max_staleness + rules.world + 1 + rules.world
        self.completed, self._places, self.oldest = {}, {}, 0
        self.applied, self.new = {}, set()
        self._ranks_at: Counter[int] = Counter()  # how many ranks have which version
        self._least = 0  # the lowest of these versions

    def free_slots(self, reducing: Round | None) -> Iterator[int]:
        """The lowest first: those were written last, and are in caches; the others need never be touched."""
        used = {r.slot for r in self.completed.values()}.union(self._places.values())
        if reducing is not None:
            used.add(reducing.slot)
        return (slot for slot in range(self.slots) if slot not in used)

    def add(self, result: Round, covered: int) -> None:
        """Keeps at most R results, and older ones that the latest snapshot, of version `covered`, does not cover yet.

        Where late contributions count, each rank can complete one round before anybody has applied the first of them;
        given up, that one would be lost to all.
        """
        self.completed[result.number] = result
        kept = len(self._places) + len(self.completed)
        while kept > self._rules.max_staleness:
            if self.oldest >= covered and kept <= self._rules.max_staleness + self._rules.world:
                return
            self._give_up_oldest()
            kept -= 1

    # -- who needs them --------------------------------------------------------------------------------------------

    def join(self, rank: int) -> None:
        """A rank begins: from a snapshot, with which it needs what is kept now."""
        self._note(rank, self.oldest)
        self.new.add(rank)

    def has_applied(self, rank: int, version: int) -> None:
        self.new.discard(rank)
        if self.applied.get(rank) != version:
            self._note(rank, version)
            if self.oldest < self._least:
                self._give_up_applied()

    def forget(self, rank: int) -> None:
        """A rank is gone for good."""
        self.new.discard(rank)
        if rank in self.applied:
            self._note(rank, None)
            self._give_up_applied()

    @property
    def least(self) -> int:
        """The version that the rank furthest behind has."""
        return self._least

    def cannot_go_on(self, rank: int) -> bool:
        """Whether a rank needs a snapshot: it begins, or what it would have to apply next is no longer kept."""
        return rank in self.new or self.applied.get(rank, self.oldest) < self.oldest

    def _note(self, rank: int, version: int | None) -> None:
        """That a rank has this version, or is gone."""
        before, ranks_at = self.applied.get(rank), self._ranks_at
        if before is not None:
            ranks_at[before] -= 1
            if not ranks_at[before]:
                del ranks_at[before]
        if version is None:
            del self.applied[rank]
        else:
            self.applied[rank] = version
            ranks_at[version] = ranks_at.get(version, 0) + 1
        if before not in ranks_at or version is None or version < self._least:
            self._least = min(ranks_at, default=self.oldest)

    def _give_up_applied(self) -> None:
        while self.oldest < self._least and (self._places or self.completed):
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        oldest = self._places or self.completed
        number = next(iter(oldest))
        del oldest[number]
        self.oldest = number + 1

    # -- beginnings ------------------------------------------------------------------------------------------------

    def from_version(self, covered: int) -> Results:
        """As whoever begins from a snapshot of this version needs them: of the rounds before, only the places."""
        results = copy(self)
        results.completed, results._places = {}, dict(self._places)
        for number, record in self.completed.items():
            if number >= covered:
                results.completed[number] = record
            else:
                results._places[number] = record.slot
        return results

    def begin_anew(self, version: int) -> None:
        """Rounds are renumbered, and all begin from a snapshot of this version: what is kept belongs to old numbers."""
        self.completed, self._places, self.oldest = {}, {}, version
        for rank in list(self.applied):
            self.join(rank)

    def _restore_what_follows(self) -> None:
        self._ranks_at = Counter(self.applied.values())
        self._least = min(self._ranks_at, default=self.oldest)


NOWHERE = -1


class SnapshotPlace(NamedTuple):
    """A complete snapshot: where, of which version, and the log position whose ledger it carries."""

    buffer: int  #: NOWHERE if nobody needed it any more; its ledger is still there
    version: int
    position: int


class Snapshots(Part):
    """Where snapshots lie: one buffer for the latest, and one for each rank that may be stopped while writing."""

    latest: SnapshotPlace | None
    claims: dict[int, tuple[int, int]]  # buffer -> (rank, incarnation) writing it

    def __init__(self, world: int) -> None:
        self.buffers = world + 1
        self.latest, self.claims = None, {}

    def free(self, buffer: int, rank: int) -> bool:
        """Whether the buffer neither holds the latest snapshot nor is being written by another rank."""
        owner = self.claims.get(buffer)
        return (owner is None or owner[0] == rank) and (self.latest is None or self.latest.buffer != buffer)

    def free_buffer(self, rank: int) -> int:
        """A buffer this rank may claim. There always is one, because a rank has at most one claim."""
        return next(buffer for buffer in range(self.buffers) if self.free(buffer, rank))

    def claim(self, buffer: int, rank: int, incarnation: int, latest_is_spent: bool = False) -> bool:
        """Gives the buffer to the rank, if free. A rank that claims again has given up what it wrote before.

        One whose snapshot is spent is emptied by whoever claims it. A number that no buffer has ends a claim.
        """
        if latest_is_spent and self.latest is not None and self.latest.buffer == buffer:
            self.latest = self.latest._replace(buffer=NOWHERE)
        if buffer < self.buffers and not self.free(buffer, rank):
            return False
        self.release(rank)
        if buffer < self.buffers:
            self.claims[buffer] = (rank, incarnation)
        return True

    def complete(self, place: SnapshotPlace, rank: int, incarnation: int, is_wanted: bool = False) -> bool:
        """Makes the claimed buffer the latest snapshot, unless one of that version is there or a newer one.

        The first of a version stays: two ranks may have begun to write what all start from, and their weights differ.
        One that another host waits for takes its place, and one of weights that were loaded before anybody trained.
        """
        if self.claims.get(place.buffer) != (rank, incarnation):
            return False
        del self.claims[place.buffer]
        if self.latest is not None and place.version < self.latest.version + (not is_wanted):
            return False
        self.latest = place
        return True

    def receive(self, place: SnapshotPlace) -> None:
        """Another host's snapshot was copied here, into a buffer that is free for it."""
        self.latest = place._replace(buffer=self.free_buffer(_NO_RANK))

    def begin_anew(self) -> None:
        """Rounds are renumbered: what is being written belongs to the old numbers. Writers keep their buffers."""
        self.latest = None
        self.claims = {buffer: (rank, _NOBODY) for buffer, (rank, _) in self.claims.items()}

    def release(self, rank: int) -> None:
        """Ends the rank's claim: it is gone, or claims anew."""
        self.claims = {b: owner for b, owner in self.claims.items() if owner[0] != rank}
