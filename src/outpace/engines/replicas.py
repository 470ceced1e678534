"""Rounds with real weights: applying, snapshots, and the meetings of all ranks.

Owns how a replica stays up to date: round by round, or from a snapshot when it lags far, joins late or was restarted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import torch

from outpace.engines.company import Company
from outpace.engines.sharing import SharingEngine, Term
from outpace.engines.sums import weighted_sum
from outpace.interface import Contents, Notes, Replica, Result, Work
from outpace.protocol.events import Claim, Snapshot, Sync
from outpace.protocol.results import SnapshotPlace
from outpace.protocol.round import Contribution, Round
from outpace.protocol.rules import Rules

OVERDUE_S = 0.1  #: a snapshot due for so long, which nobody writes, is written by whoever waits
WRITING_S = 2.0  #: so is one that somebody has been writing for so long: that rank may be stopped
REPLAY_AT_MOST = 2  #: a rank further behind a snapshot adopts it: copying costs about as much as applying one round
AT_THE_END = 2  #: where buffers lie for `finish`; synchronisations take 0 and 1 in turn

T = TypeVar("T")


class ReplicaEngine(SharingEngine):
    """What a training script's wrapper calls, in terms of what an engine brings."""

    def __init__(self, rank: int, rules: Rules, replica: Replica) -> None:
        super().__init__(rank, rules)
        self._overdue: tuple[object, float] | None = None  # the latest snapshot and who writes, and since when
        self._replica = replica
        replica.rules = rules
        self._company = Company(rank)
        self._base: SnapshotPlace | None = None  # what this replica was last made from

    @property
    def version(self) -> int:
        """Rounds this replica has applied."""
        return self._replica.version

    # -- what an engine brings -------------------------------------------------------------------------------------

    @abstractmethod
    def run(self, call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Runs one of the calls below, or a strategy's, to its end, from code that is not a coroutine."""

    @abstractmethod
    def close(self) -> None:
        """Gives everything back, without a word to the others."""

    @abstractmethod
    def pending(self) -> list[dict[str, Any]]:
        """Copies of this rank's contributions that no round has taken in yet."""

    @abstractmethod
    async def give_again(self, pending: dict[str, Any]) -> None:
        """Contributes what a checkpoint held as pending. It is late, and treated as the strategy treats late ones."""

    @abstractmethod
    def _row_of(self, row: int) -> list[torch.Tensor]:
        """A published row, as tensors shaped like what the replica publishes."""

    @abstractmethod
    def _note(self, row: int, notes: Notes) -> None:
        """Puts numbers beside a published row."""

    @abstractmethod
    async def _apply(self, record: Round) -> None:
        """Applies one complete round, unless it is no longer kept."""

    @abstractmethod
    def _position(self) -> int:
        """How far this rank has read the log."""

    @abstractmethod
    async def _save(self, buffer: int, position: int) -> None:
        """Writes this replica and the ledger into a snapshot buffer."""

    @abstractmethod
    def _load(self, buffer: int) -> Contents | None:
        """A private copy of what a snapshot buffer holds, or None if it is being overwritten."""

    @abstractmethod
    def _leave_buffers(self, place: int) -> None:
        """Leaves this rank's model buffers for a meeting."""

    @abstractmethod
    def _average_buffers(self, place: int, ranks: Iterable[int]) -> None:
        """Makes this rank's model buffers the mean of what these ranks left."""

    @abstractmethod
    def _saved(self, buffer: int, position: int) -> None:
        """That snapshot is now the latest one."""

    # -- beginning and end -----------------------------------------------------------------------------------------

    async def _share_beginning(self) -> None:
        """The first living rank writes a snapshot if there is none yet; everybody begins from it."""
        while self._snapshot_version() < 0:
            if self._is_first():
                await self._write_snapshot()
            else:
                await self._until(lambda: self._snapshot_version() >= 0 or self._is_first(), "for the first weights")
        await self._adopt(at_least=0, is_beginning=True)

    def _is_first(self) -> bool:
        """Whether this rank's weights are those that all begin from. Not if another host has a snapshot already."""
        unfinished, source = self.ledger.open.unfinished, self.ledger.sync.source
        first = source if source in unfinished else min(unfinished, default=self.rank)
        return self.rank == first and all(snapshots.latest is None for snapshots in self.ledger.snapshots_at)

    async def finish(self) -> None:
        """Leaves the quorum at once; applies until all have finished and nothing is pending."""
        self.leave()
        await self._apply_while_waiting(lambda: self.ledger.ended, "in finish() for the other ranks to finish")
        await self._apply_until(self.ledger.round)
        if self._snapshot_version() < self.ledger.round - self.rules.max_staleness:
            await self._write_snapshot()  # for a rank that wakes up when all others have left
        finished = [m.rank for m in self.ledger.members.by_rank.values() if m.counts]
        self._average_buffers(AT_THE_END, finished)

    def leave(self, for_good: bool = False) -> None:
        """Says that no more data comes, without waiting for anybody: for a script that simply ends, `for_good`."""
        if not self.has_left:
            self._leave_buffers(AT_THE_END)
        super().leave(for_good)

    # -- meetings --------------------------------------------------------------------------------------------------

    async def synchronize(self, resume_round: int | None = None) -> None:
        """Waits for all, flushes, ends at one version with averaged buffers.

        With `resume_round`, the rounds go on from that number and everybody adopts the replica that is furthest.
        """
        self._look()
        if resume_round is not None:
            self._replica.begin_anew()
        generation = self.ledger.sync.generation
        self._leave_buffers(generation % 2)
        resume = 0 if resume_round is None else resume_round + 1
        self._append(Sync(self.rank, self.incarnation, generation, resume, self.steps))
        purpose = "in synchronize() for every rank that has data left"
        self._company.wait_begins(self.now_s())

        def all_are_here() -> bool:
            self._company.look(self.ledger, self.now_s())
            return self.ledger.sync.generation > generation

        if resume_round is None:
            await self._apply_while_waiting(all_are_here, purpose)
        else:  # nothing may be applied on top of a checkpoint
            await self._until(all_are_here, purpose)
        self._company.all_have_met(self.ledger)
        self._go_on_from(self.ledger.sync.steps)
        if self.ledger.sync.resumed:
            self._replica.version = self.ledger.sync.version
            await self._share_beginning()
            return
        await self._apply_until(self.ledger.sync.version)
        self._average_buffers(generation % 2, self.ledger.sync.ranks)

    async def take_up(self) -> None:
        """Becomes what the others are, whatever was loaded meanwhile."""
        await self._adopt(at_least=0, is_beginning=True)

    async def begin_with_own(self) -> None:
        """Weights were loaded since this rank began, and before it contributed: makes them what all begin with.

        If others have done so, or train already, this rank becomes what they are.
        """
        self._look()
        has_trained = self.came_late or self.ledger.complete > self._replica.version
        is_first = not has_trained and self.ledger.snapshots.latest == self._base
        if is_first:
            self._replica.begin_anew()
            await self._write_snapshot(anew=True)
        if not is_first or self.ledger.snapshots.latest != self._base:
            await self.take_up()

    def resume_steps(self, steps: int) -> None:
        """Goes on counting this rank's steps from a checkpoint."""
        self._steps = max(self._steps, steps)
        self.steps = max(self.steps, steps)

    def own(self, result: Result) -> Result:
        """With what in it is this rank's own, where anybody wants to know."""
        if self.rules.codec == "none":
            return result
        record = result.round
        mine, refused = self._steps_in(record.contributions), self._steps_in(record.refused)
        return result._replace(mine=() if record.void else mine, refused=refused + mine if record.void else refused)

    def _steps_in(self, contributions: Iterable[Contribution]) -> tuple[int, ...]:
        me = (self.rank, self.incarnation)
        own = [c for c in contributions if (c.rank, c.incarnation) == me]
        return tuple(step for c in own for step in range(c.step - c.pieces + 1, c.step + 1))

    def _keeps(self, step: int) -> bool:
        return self._replica.give_up(step)

    # -- published weights -----------------------------------------------------------------------------------------

    async def local_step(self, work: Work) -> None:
        """Takes one step of the inner optimizer. Where weights are published, the replica's version is its step."""
        self._replica.local_step(work)
        self.steps += 1
        if self.rules.publishes is not None:
            self._replica.version = self.steps
            if self._snapshot_is_due() and self.steps % self.world == self.rank:
                await self._write_snapshot()

    async def _write(self, row: int, notes: Notes) -> None:
        self._replica.prepare()
        torch._foreach_copy_(self._row_of(row), self._replica.published())
        self._note(row, (*self._replica.notes(), *notes))

    def _own_notes(self) -> Notes:
        return self._replica.notes()

    def _has_published(self) -> None:
        self._replica.has_published()

    def _sum(self, terms: Sequence[Term], own: float) -> list[torch.Tensor]:
        rows = [(self._row_of(place.row), weight) for place, weight in terms]
        if own:
            rows.append((self._replica.published(), own))
        return weighted_sum(rows)

    def _write_sum(self, row: int, summed: list[torch.Tensor]) -> None:
        torch._foreach_copy_(self._row_of(row), summed)
        self._note(row, ())

    def _take(self, summed: list[torch.Tensor], notes: Notes) -> None:
        torch._foreach_copy_(self._replica.published(), summed)
        self._replica.averaged(notes)

    def _keep(self) -> None:
        self._replica.prepare()
        self._replica.averaged(self._replica.notes())

    def _put_on_top(self, weights: list[torch.Tensor]) -> None:
        self._replica.rebase(weights)

    # -- applying --------------------------------------------------------------------------------------------------

    async def _apply_while_waiting(self, until: Callable[[], bool], purpose: str) -> None:
        """Waits without falling behind: rounds that complete meanwhile are applied."""
        while not until():
            await self._until(lambda: until() or self.ledger.complete > self._replica.version, purpose)
            if not until():
                await self._apply_until(self.ledger.complete)

    async def _apply_until(self, version: int) -> None:
        """Brings the replica to this version, or beyond it if only a later snapshot is left."""
        while self._replica.version < version:
            ahead = self.ledger.snapshots.latest
            mine = self._replica.version
            if self._is_superseded():
                await self._adopt(at_least=mine)
                continue
            record = self.ledger.completed.get(mine) if self.ledger.has_result(mine) else None
            if (ahead is not None and mine + REPLAY_AT_MOST < ahead.version <= version) or record is None:
                await self._adopt(at_least=mine + 1)
                continue
            await self._apply(record)
            if self._snapshot_is_due() and self._writes_snapshot_of(record):
                await self._write_snapshot()

    # -- snapshots -------------------------------------------------------------------------------------------------

    def _is_superseded(self) -> bool:
        """Whether nothing was applied to a snapshot yet and there is another: that may be of weights loaded since."""
        base, latest, version = self._base, self.ledger.snapshots.latest, self._replica.version
        if base is None or latest is None or base == latest:
            return False
        return base.version == version <= latest.version

    def _snapshot_version(self) -> int:
        latest = self.ledger.snapshots.latest
        return -1 if latest is None else latest.version

    def _snapshot_is_due(self) -> bool:
        """Every R-1 rounds after the first one, which is written where all begin; and for a host that has none."""
        latest = self._snapshot_version()
        if latest >= 0 and self.ledger.hosts.count > 1 and self._is_wanted_elsewhere():
            return True
        return 0 <= latest <= self._replica.version - max(1, self.rules.max_staleness - 1)

    def _is_wanted_elsewhere(self) -> bool:
        """Whether a host waits for a snapshot as new as this replica is."""
        wanting = [host for host in self.ledger.without_snapshot() if host != self.ledger.host]
        return any(self._replica.version >= self.ledger.least_version(host) for host in wanting)

    def _snapshot_patience_s(self) -> float:
        return WRITING_S if self.ledger.snapshots.claims else OVERDUE_S

    def _snapshot_is_overdue(self) -> bool:
        """Whether its writer seems lost. Whoever waits writes it then: who lags may wait for it, and we for them."""
        if not self._snapshot_is_due():
            self._overdue = None
            return False
        seen, now = (self._snapshot_version(), dict(self.ledger.snapshots.claims)), self.now_s()
        if self._overdue is None or self._overdue[0] != seen:
            self._overdue = (seen, now)
        return now - self._overdue[1] >= self._snapshot_patience_s()

    def _writes_snapshot_of(self, record: Round) -> bool:
        """One of those of this host who were on time, in turn."""
        of, here = self.ledger.hosts.of, self.ledger.host
        waiting = sorted({c.rank for c in record.contributions if of[c.rank] == here and self.ledger.waits(c)})
        return bool(waiting) and waiting[record.number % len(waiting)] == self.rank

    async def _write_snapshot(self, anew: bool = False) -> None:
        """`anew`: it takes the place of one of the same version, if no round went on from that yet."""
        buffer = self.ledger.snapshots.free_buffer(self.rank)
        self._append(Claim(self.rank, self.incarnation, buffer))
        if self.ledger.snapshots.claims.get(buffer) != (self.rank, self.incarnation):
            return  # another rank was quicker; its snapshot serves as well
        version, position = self._replica.version, self._position()
        await self._save(buffer, position)
        self._append(Snapshot(self.rank, self.incarnation, buffer, version, position, anew))
        if self.ledger.snapshots.latest == (buffer, version, position):
            self._saved(buffer, position)
            if anew:
                self._base = self.ledger.snapshots.latest

    async def _adopt(self, at_least: int, is_beginning: bool = False) -> None:
        """Becomes the latest snapshot of at least that version, waiting for one if need be."""
        while True:
            await self._until(lambda: self._snapshot_version() >= at_least, "for a snapshot to catch up with")
            latest = self.ledger.snapshots.latest
            assert latest is not None
            contents = self._load(latest.buffer)
            self._look()
            if contents is not None and self.ledger.snapshots.latest == latest:
                self._replica.adopt(contents, latest.version, is_beginning)
                self._base = latest
                self._replica.keep_only(self._steps_in(self.ledger.pending(self.rank)))
                return
