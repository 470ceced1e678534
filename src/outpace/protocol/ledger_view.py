"""The state of a ledger after some prefix of the log, and all questions that can be asked of it.

Holds the parts of a ledger, and changes none of them: `ledger.py` does, event by event. One part is defined here: where
snapshots lie, and who may write one.
"""

from __future__ import annotations

from typing import NamedTuple

from outpace.protocol.hosts import Hosts
from outpace.protocol.members import FINISHED, SYNCING, Members, OpenRound, Synchronisation
from outpace.protocol.pace import Pace, QuorumChoice
from outpace.protocol.pool import Pool
from outpace.protocol.published import Published
from outpace.protocol.round import Contribution, Discount, Lateness, Results, Round, UsualSize
from outpace.protocol.rules import Rules
from outpace.protocol.state import Part

_NO_RANK = -1  # stands for the agent that copies a snapshot from another host, which needs no claim
_NOBODY = -1  # not an incarnation: a claim that can be given up, but not completed
NOWHERE = -1  #: the buffer of a snapshot that nobody needed any more


class SnapshotPlace(NamedTuple):
    """A complete snapshot: its buffer, its version, and the log position of the ledger in it."""

    buffer: int  #: NOWHERE if nobody needs it any more; only its ledger is left
    version: int
    position: int


def snapshot_buffers(world: int) -> int:
    """How many: one for the latest snapshot, one for the latest base, and one for each rank that may be stopped while
    writing."""
    return world + 2


class Snapshots(Part):
    """Where snapshots lie.

    What is not trained, frozen parameters and buffers, is the *base*. Only starting ranks need it, so snapshots for
    lagging ranks omit it. The latest base is kept for ranks that start when nobody is left to write another.
    """

    latest: SnapshotPlace | None
    base: SnapshotPlace | None  #: the latest snapshot with a base; its weights may be gone
    claims: dict[int, tuple[int, int]]  # buffer -> (rank, incarnation) writing it
    joined: set[int]  #: ranks that have joined since that base was written

    def __init__(self, world: int) -> None:
        self.buffers = snapshot_buffers(world)
        self.latest, self.base, self.claims, self.joined = None, None, {}, set()

    @property
    def is_without_base(self) -> bool:
        """Whether the latest snapshot has no base, so that starting ranks take an older one's."""
        if self.latest is None or self.latest.buffer == NOWHERE:
            return False
        return self.base is None or self.base.version < self.latest.version

    def free(self, buffer: int, rank: int) -> bool:
        """Whether the buffer neither holds the latest snapshot or base nor is being written by another rank."""
        return self._is_for(rank, buffer) and not self._is_kept(buffer)

    def _is_for(self, rank: int, buffer: int) -> bool:
        owner = self.claims.get(buffer)
        return owner is None or owner[0] == rank

    def _is_kept(self, buffer: int) -> bool:
        return any(place is not None and place.buffer == buffer for place in (self.latest, self.base))

    def free_buffer(self, rank: int) -> int:
        """A buffer this rank may claim. There always is one, because a rank has at most one claim."""
        return next(buffer for buffer in range(self.buffers) if self.free(buffer, rank))

    def claim(self, buffer: int, rank: int, incarnation: int, latest_is_spent: bool = False) -> bool:
        """Gives the buffer to the rank, if free. A second claim gives up what the rank was writing before.

        Claiming the buffer of a spent snapshot empties it, except for the latest base. A number beyond the last buffer
        only ends the previous claim.
        """
        is_kept = self._is_kept(buffer) and not latest_is_spent
        if buffer < self.buffers and (is_kept or not self._is_for(rank, buffer)):
            return False
        if self.latest is not None and self.latest.buffer == buffer:
            self.latest = self.latest._replace(buffer=NOWHERE)
        self.release(rank)
        if buffer < self.buffers:
            self.claims[buffer] = (rank, incarnation)
        return True

    def complete(
        self, place: SnapshotPlace, rank: int, incarnation: int, has_base: bool = True, is_wanted: bool = False
    ) -> bool:
        """Makes the claimed buffer the latest snapshot, unless there is one of that version or a newer one already.

        The first of a version stays, because two ranks may have written what all start from, with different weights.
        It is replaced by one that another host waits for (`is_wanted`), or one of weights loaded before training. If
        the first has no base, it is used with the second's.
        """
        if self.claims.get(place.buffer) != (rank, incarnation):
            return False
        del self.claims[place.buffer]
        if not has_base and self.base is None:
            return False
        is_latest = self.latest is None or place.version >= self.latest.version + (not is_wanted)
        is_base = has_base and (is_latest or (self.is_without_base and place.version == self._version))
        if is_latest:
            self.latest = place
        if is_base:
            self.base = place
            self.joined.clear()
        return is_latest or is_base

    @property
    def _version(self) -> int:
        return -1 if self.latest is None else self.latest.version

    def receive(self, place: SnapshotPlace) -> None:
        """Another host's snapshot, with its base, was copied into a free buffer here."""
        self.latest = self.base = place._replace(buffer=self.free_buffer(_NO_RANK))
        self.joined.clear()

    def begin_anew(self) -> None:
        """Rounds are renumbered. Snapshots being written keep their buffers, but their old numbers will not count."""
        self.latest = self.base = None
        self.claims = {buffer: (rank, _NOBODY) for buffer, (rank, _) in self.claims.items()}

    def join(self, rank: int) -> None:
        """The rank starts, and is not writing anything."""
        self.release(rank)
        self.joined.add(rank)

    def release(self, rank: int) -> None:
        """Ends the rank's claim."""
        self.claims = {b: owner for b, owner in self.claims.items() if owner[0] != rank}


class LedgerView(Part):
    members: Members
    pace: Pace
    choice: QuorumChoice  #: where the quorum follows the arrivals
    round: int  #: the open round; also the version of a replica that applied everything sealed
    open: OpenRound
    met_ns: int | None  #: when the open round's quorum was met
    grace_ns: int
    patient_until_ns: int | None  #: when the open round goes ahead without its quorum
    reducing: Round | None  #: sealed, its result not yet complete
    results: Results
    hyper_step: int  #: steps of the rank whose hyper-parameters were used last
    discount: Discount
    usual_size: UsualSize
    lateness: Lateness
    sync: Synchronisation
    hosts: Hosts
    snapshots_at: list[Snapshots]  #: by host
    published: Published
    pool: Pool
    told: dict[int, dict[tuple[int, int], float]]  #: rank -> (its step, index) -> a number it sent to all
    started: bool  #: every rank has joined once; there are no rounds before that
    over: bool  #: if dead ranks are restarted: all have finished, and nobody may join any more

    def __init__(self, rules: Rules, host: int = 0) -> None:
        self.rules = rules
        self.host = host  #: whose snapshots `snapshots` means; has no other effect
        self.members, self.hosts, self.sync = Members(), Hosts(rules), Synchronisation()
        self.pace, self.choice = Pace(rules.needs_pace), QuorumChoice(rules.quorum == "auto", rules.usual_lag)
        self.round, self.open, self.reducing = 0, OpenRound(rules.rows), None
        self.met_ns, self.grace_ns, self.patient_until_ns, self.hyper_step = None, 0, None, 0
        self.results, self.discount = Results(rules), Discount(rules)
        self.usual_size, self.lateness = UsualSize(rules), Lateness(rules)
        self.told = {}
        self.snapshots_at = [Snapshots(rules.world) for _ in range(self.hosts.count)]
        self.published = Published(rules, self.members, self.pace)
        self.pool = Pool(self.hosts.count)
        self.started = self.over = False
        self._asked = 0  # how many ranks the quorum is taken of
        self._needed = 0  # how many arrivals make the quorum if it is a plain count; 0 to check at each arrival
        self._observes = rules.needs_pace
        self._news = 0

    @property
    def below_quorum(self) -> bool:
        return self.started and len(self.members.counted) < self.rules.least_ranks

    def why_below_quorum(self) -> str:
        dead = sorted(self.members.by_rank.keys() - self.members.counted)
        return (
            f"ranks {dead} died and {len(self.members.counted)} of {self.rules.world} are left, fewer than "
            f"min_ranks={self.rules.least_ranks}. Nothing more was applied; restart from the last checkpoint, or "
            "lower min_ranks"
        )

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots in the memory of this ledger's host."""
        return self.snapshots_at[self.host]

    def has_result(self, number: int) -> bool:
        """Whether a complete round's result lies in the memory of this ledger's host. Not if the others completed it
        after giving that host up."""
        return self.host in self.hosts.living and number >= self.hosts.begins.get(self.host, 0)

    def without_snapshot(self) -> list[int]:
        """Hosts that the next snapshot is sent to: theirs is from before they were given up, or too old for a lagging
        rank there."""
        return [host for host in sorted(self.hosts.living) if self.lacks_snapshot(host)]

    def lacks_snapshot(self, host: int) -> bool:
        """Whether a rank of that host needs a later snapshot than the latest there to go on."""
        latest = self.snapshots_at[host].latest
        if latest is None or latest.version < self.hosts.begins.get(host, 0):
            return True
        is_of_use = latest.buffer != NOWHERE and latest.version >= self.results.oldest
        return not is_of_use and any(map(self.results.cannot_go_on, self.hosts.ranks[host]))

    def lacks_base(self, host: int) -> bool:
        """Whether a rank of that host is starting and every base there is older than its joining."""
        return self.snapshots_at[host].is_without_base and self.somebody_begins(host)

    def somebody_begins(self, host: int) -> bool:
        """Whether a rank there has joined since the latest base and has not contributed yet."""
        return not self.results.new.isdisjoint(self.snapshots_at[host].joined)

    def is_spent(self) -> bool:
        """Whether nobody needs the latest snapshot any more: all ranks are beyond it, and a rank that joins later needs
        a newer one. With several hosts, or without rounds, one is always kept."""
        latest = self.snapshots.latest
        if latest is None or latest.buffer == NOWHERE or self.hosts.count > 1 or self.rules.publishes is not None:
            return False
        return not self.results.new and latest.version < min(self.results.least, self.results.oldest)

    def _leader(self, contributions: tuple[Contribution, ...]) -> Contribution | None:
        """Whose hyper-parameters to use: of the ranks on time, the one with the most steps; never older ones."""
        leader, most, all_wait = None, self.hyper_step - 1, self.rules.late == "count"
        for contribution in contributions:
            if contribution.step > most and (all_wait or not contribution.late):
                leader, most = contribution, contribution.step
        return leader

    def _covered(self) -> int:
        """The oldest of the hosts' latest snapshots: results before its version are covered on every host."""
        there = [self.snapshots_at[host].latest for host in self.hosts.living]
        return min((latest.version for latest in there if latest is not None), default=self.round)

    def least_version(self, host: int) -> int:
        """The oldest snapshot version from which that host's ranks can go on with the results kept there."""
        return max(self.hosts.begins.get(host, 0), self.results.oldest)

    @property
    def news(self) -> int:
        """Grows with everything that a rank may wait for: with the end of a round, but not with an arrival."""
        return self._news + self.published.changes

    @property
    def ended(self) -> bool:
        """True when every rank has finished and nothing is pending. Waits for dead ranks if these are restarted."""
        return self.over if self.rules.restarts else self._nothing_is_left()

    def _nothing_is_left(self) -> bool:
        return not (self.open.unfinished or self.reducing) and self.open.is_empty

    @property
    def complete(self) -> int:
        """How many rounds are complete: the version a replica can be brought to now."""
        return self.round if self.reducing is None else self.reducing.number

    @property
    def deadline_ns(self) -> int | None:
        """When a waiting rank should seal the open round; None while there is no such time."""
        if self.rules.publishes is not None:
            return self.published.deadline_ns
        if self.reducing is not None:
            return None
        return self.patient_until_ns if self.met_ns is None else self.met_ns + self.grace_ns

    @property
    def sealable(self) -> int:
        """The round, or the published iteration, that a seal would apply to."""
        return self.round if self.rules.publishes is None else self.published.open

    def sealers(self) -> list[int]:
        """The ranks that wait for that seal, in the order they came."""
        return [c.rank for c in self.on_time] if self.rules.publishes is None else self.published.fresh

    @property
    def on_time(self) -> list[Contribution]:
        return self.open.on_time

    @property
    def carried(self) -> list[Contribution]:
        return self.open.carried

    def free_row(self, rank: int) -> int | None:
        """A row this rank may write, or None while both belong to the ledger."""
        return self.open.free_row(rank)

    def pending(self, rank: int) -> list[Contribution]:
        return [c for c in self.on_time + self.carried if c.rank == rank]

    def waits(self, contribution: Contribution) -> bool:
        """Whether its rank waits for the round. A carried contribution's does not: that is how waiting is avoided."""
        return not contribution.late or self.rules.late == "count"

    @property
    def completed(self) -> dict[int, Round]:
        return self.results.completed

    def free_slots(self) -> list[int]:
        """Slots without a result that is kept or in reduction."""
        return list(self.results.free_slots(self.reducing))

    def awaited(self) -> list[int]:
        """The ranks that the open round, a synchronisation or the end is still waiting for."""
        if self.rules.restarts and self._nothing_is_left():
            return sorted(self.members.expected())
        return sorted(self.open.can or self.members.away)

    def is_waiting(self, rank: int, is_meeting: bool = False) -> bool:
        """Whether this rank waits for others here; with `is_meeting`, whether it waits for all of them."""
        member = self.members.by_rank.get(rank)
        if member is None or not member.alive or not self.started:
            return False
        if member.state == FINISHED:
            return not self.ended
        return member.state == SYNCING or (not is_meeting and rank in self.open.present)
