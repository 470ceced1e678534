"""The local engine: what strategies call on one machine.

Owns the order of things within one rank's step: deposit, append, reduce, apply. Every decision comes from the ledger,
every wait goes through the watch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from outpace.engines.base import Replica, Result, Ticket, Work
from outpace.engines.local import arena
from outpace.engines.local.arena import Memory
from outpace.engines.local.bell import SLICE_S, Bell
from outpace.engines.local.buffers import BufferRows
from outpace.engines.local.faults import Faults
from outpace.engines.local.holds import Holds, tag
from outpace.engines.local.layout import ArenaLayout
from outpace.engines.local.life import Life
from outpace.engines.local.log import Log
from outpace.engines.local.reduction import Reduction, join_meta, split_meta
from outpace.engines.local.rendezvous import Meeting
from outpace.engines.local.snapshot import SnapshotStore
from outpace.engines.local.watch import Watch
from outpace.errors import OutpaceError
from outpace.protocol.events import Event, Kind
from outpace.protocol.ledger import Ledger
from outpace.protocol.round import Round
from outpace.protocol.rules import Rules
from outpace.vector import VectorLayout

OVERDUE_S = 0.1  #: a snapshot due for so long while this rank waits is written by this rank
REPLAY_AT_MOST = 2  #: a rank further behind a snapshot adopts it: copying costs about as much as applying one round


class LocalEngine:
    """One rank's way to the others on this machine, through shared memory."""

    def __init__(
        self,
        replica: Replica,
        vector: VectorLayout,
        rules: Rules,
        layout: ArenaLayout,
        description: dict[str, Any],
        meeting: Meeting,
        rank: int,
        max_grad_norm: float | None,
        timeout_s: float,
    ) -> None:
        self.rank, self.world, self.rules = rank, rules.world, rules
        self._replica = replica
        self._files = meeting.enter(description, layout, rules.max_staleness)
        self._memory = Memory(self._files.arena, layout)
        self._faults = Faults()
        self._life = Life(self._files.life)
        self._snapshots = SnapshotStore(self._memory)
        log, bell = Log(self._files.log), Bell(self._memory.word)
        self._watch = Watch(rank, rules, log, self._snapshots, bell, self._life, self._faults, timeout_s)
        self._holds = Holds(self._memory, rank)
        self._buffers = BufferRows(self._memory, replica.buffers())
        self._reduction = Reduction(
            self._memory, vector.chunks(), rules.normalise, max_grad_norm, self._is_current, self._faults
        )
        self._watch.shares_reductions = not self._reduction.is_small
        self._vector = vector
        self._views: dict[int, list[torch.Tensor]] = {}
        self._tried: tuple[int, float] = (0, 0.0)  # attempt this rank has worked on, and when it had no more to do
        self._overdue: tuple[int, float] = (-1, 0.0)  # version of the latest snapshot, and since when another is due
        self._steps = 0

    @property
    def ledger(self) -> Ledger:
        """This rank's ledger."""
        return self._watch.ledger

    @property
    def waited_s(self) -> float:
        """Seconds this rank has spent waiting for others."""
        return self._watch.waited_s

    # -- beginning and end -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Joins, waits until every rank of the world has joined once, and begins from the same weights as all."""
        if not self._life.take(self.rank):
            raise OutpaceError(
                f"rank {self.rank} still lives as process {self._life.holder(self.rank)}; it may wake up and write. "
                "End it before you start its replacement"
            )
        try:
            self._holds.release()
            self._watch.refresh()
            known = self.ledger.members.by_rank.get(self.rank)
            self._watch.incarnation = 1 if known is None else known.incarnation + 1
            self._watch.append(self._watch.own(Kind.JOIN))
            self._wait(lambda: self.ledger.started, "for every rank to join")
            self._share_beginning()
        except BaseException:
            self.close()
            raise

    def _share_beginning(self) -> None:
        """The first living rank writes a snapshot if there is none yet; everybody begins from it."""

        def offer() -> bool:
            unfinished = [m.rank for m in self.ledger.members.unfinished()]
            if self.ledger.snapshots.latest is None and self.rank == min(unfinished):
                self._write_snapshot()
                return True
            return self._assist()

        self._watch.wait(lambda: self._snapshot_version() >= 0, offer, "for the first weights")
        self._adopt(at_least=0)

    def close(self) -> None:
        """Gives up this rank's life and its files. Pending work stays in the ledger."""
        if self._files is None:
            return
        self._holds.release()
        arena.remove_directory(self._files, self.world)
        self._files.close()
        self._files = None  # type: ignore[assignment]

    # -- what strategies call --------------------------------------------------------------------------------------

    async def begin(self, work: Work) -> Ticket:
        """Writes this rank's row and appends its arrival. Waits for nobody."""
        self._watch.refresh()
        version = self._replica.version
        row = self._free_row()
        layout = self._memory.layout
        present, hyper = self._replica.deposit(self.row_views(row), work)
        self._faults.at("depositing", version)
        self._memory.write_meta(layout.row_meta(self.rank, row), join_meta(present, hyper))
        return self._arrive(row, version, work.samples)

    def _arrive(self, row: int, version: int, samples: float) -> Ticket:
        self._steps += 1
        self._watch.append(self._watch.own(Kind.ARRIVE, self._steps, version, row, samples))
        reason = self._watch.placed
        if reason.startswith("ignored") and "arrived before" not in reason:
            raise OutpaceError(
                f"[rank {self.rank} - round {version}] this contribution was not taken in ({reason}): this rank was "
                "replaced, or an earlier synchronize() or finish() was interrupted. Make a new DistributedOptimizer"
            )
        undecided = self.ledger.undecided(self.rank, self._watch.incarnation, self._steps)
        if undecided is None:
            return Ticket(self._steps, version, False, reason)
        return Ticket(self._steps, undecided[0], self.ledger.waits(undecided[1]), reason)

    async def result(self, ticket: Ticket) -> None:
        """Waits until the ticket's round is complete, reducing along."""
        if not ticket.waits:
            return

        def complete() -> bool:
            sealed = self.ledger.reducing
            return self.ledger.round > ticket.round and (sealed is None or sealed.number > ticket.round)

        self._wait(complete, f"for the quorum of round {ticket.round}")

    async def catch_up(self) -> None:
        """Applies every round known to be sealed. One that is still being reduced is helped along first."""
        last = self.ledger.round
        self._wait(lambda: self._complete_until() >= last, "for a result to be reduced")
        self._apply_until(last)

    async def synchronize(self, resume_round: int | None = None) -> None:
        """Waits for all, flushes, ends at one version with averaged buffers.

        With `resume_round`, the rounds go on from that number and everybody adopts the first rank's replica.
        """
        self._watch.refresh()
        generation = self.ledger.sync.generation
        self._buffers.write(generation % 2, self.rank, self._replica.buffers())
        self._watch.append(self._watch.own(Kind.SYNC, generation, 0 if resume_round is None else resume_round + 1))
        purpose = "in synchronize() for every rank that has data left"
        if resume_round is None:
            self._apply_while_waiting(lambda: self.ledger.sync.generation > generation, purpose)
        else:  # nothing may be applied on top of a checkpoint
            self._wait(lambda: self.ledger.sync.generation > generation, purpose)
        if self.ledger.sync.resumed:
            self._replica.version = self.ledger.sync.version
            self._share_beginning()
            return
        self._apply_until(self.ledger.sync.version)
        self._buffers.average(generation % 2, self.ledger.sync.ranks, self._replica.buffers())

    async def finish(self) -> None:
        """Leaves the quorum at once; applies until all have finished and nothing is pending."""
        self._buffers.write(2, self.rank, self._replica.buffers())
        self._watch.append(self._watch.own(Kind.FINISH))
        self._apply_while_waiting(lambda: self.ledger.ended, "in finish() for the other ranks to finish")
        self._apply_until(self.ledger.round)
        if self._snapshot_version() < self.ledger.round - self.rules.max_staleness:
            self._write_snapshot()  # for a rank that wakes up when all others have left
        finished = [m.rank for m in self.ledger.members.by_rank.values() if m.counts]
        self._buffers.average(2, finished, self._replica.buffers())

    def leave(self) -> None:
        """Says that no more data comes, without waiting for anybody: for a script that simply ends."""
        self._buffers.write(2, self.rank, self._replica.buffers())
        self._watch.append(self._watch.own(Kind.FINISH))

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def resume_steps(self, steps: int) -> None:
        """Goes on counting this rank's steps from a checkpoint."""
        self._steps = max(self._steps, steps)

    def pending(self) -> list[dict[str, Any]]:
        """Copies of this rank's contributions that no round has taken in yet."""
        if self._files is None:
            return []
        self._watch.refresh()
        layout, found = self._memory.layout, []
        for c in self.ledger.pending(self.rank):
            row = self._memory.region(layout.row(self.rank, c.row), self._vector.nbytes)
            meta = self._memory.read_meta(layout.row_meta(self.rank, c.row))
            found.append({"version": c.version, "samples": c.samples, "row": row.clone(), "meta": meta})
        return found

    async def give_again(self, pending: dict[str, Any]) -> None:
        """Contributes what a checkpoint held as pending. It is late, and treated as the strategy treats late ones."""
        row = self._free_row()
        layout = self._memory.layout
        self._memory.region(layout.row(self.rank, row), self._vector.nbytes).copy_(pending["row"])
        self._memory.write_meta(layout.row_meta(self.rank, row), pending["meta"])
        self._arrive(row, pending["version"], pending["samples"])

    def row_views(self, row: int) -> list[torch.Tensor]:
        """This rank's row as tensors shaped like the parameters."""
        return self._vector_at(self._memory.layout.row(self.rank, row))

    # -- applying --------------------------------------------------------------------------------------------------

    def _complete_until(self) -> int:
        sealed = self.ledger.reducing
        return self.ledger.round if sealed is None else sealed.number

    def _apply_while_waiting(self, until: Callable[[], bool], purpose: str) -> None:
        """Waits without falling behind: rounds that complete meanwhile are applied."""
        while True:
            self._wait(lambda: until() or self._complete_until() > self._replica.version, purpose)
            if until():
                return
            self._apply_until(self._complete_until())

    def _apply_until(self, version: int) -> None:
        """Brings the replica to this version, or beyond it if only a later snapshot is left."""
        while self._replica.version < version:
            ahead = self.ledger.snapshots.latest
            mine = self._replica.version
            record = self.ledger.completed.get(mine)
            if (ahead is not None and mine + REPLAY_AT_MOST < ahead.version <= version) or record is None:
                self._adopt(at_least=mine + 1)
            else:
                self._apply(record)

    def _apply(self, record: Round) -> None:
        """One round, read in place. Its slot cannot be reused while this rank holds it."""
        self._holds.take(record)
        try:
            self._watch.refresh()
            if self.ledger.completed.get(record.number) is not record:
                return  # no longer kept: the caller adopts a snapshot
            layout = self._memory.layout
            present, hyper = split_meta(self._memory.read_meta(layout.slot_meta(record.slot)))
            self._faults.at("applying", record.number)
            self._replica.apply(Result(record, self._vector_at(layout.slot(record.slot)), present, hyper))
        finally:
            self._holds.release()
        self._renew_snapshot(record)

    def _renew_snapshot(self, record: Round) -> None:
        """Every R-1 rounds one of those who were on time writes a snapshot."""
        if self._snapshot_is_due():
            waiting = sorted({c.rank for c in record.contributions if self.ledger.waits(c)})
            if waiting and waiting[record.number % len(waiting)] == self.rank:
                self._write_snapshot()

    def _snapshot_is_due(self) -> bool:
        return self._replica.version - self._snapshot_version() >= max(1, self.rules.max_staleness - 1)

    def _write_overdue_snapshot(self) -> bool:
        """Writes the one that is due if its writer was lost: who lags may be waiting for it, and we for that rank."""
        if not self._snapshot_is_due():
            self._overdue = (-1, 0.0)
            return False
        version, since = self._overdue
        if version != self._snapshot_version():
            self._overdue = (self._snapshot_version(), time.monotonic())
        elif time.monotonic() - since > OVERDUE_S:
            self._write_snapshot()
            return True
        return False

    def _write_snapshot(self) -> None:
        buffer = self.ledger.snapshots.free_buffer(self.rank)
        self._watch.append(self._watch.own(Kind.CLAIM, place=buffer))
        if self.ledger.snapshots.claims.get(buffer) != (self.rank, self._watch.incarnation):
            return  # another rank was quicker; its snapshot serves as well
        version, position = self._replica.version, self._watch.log.position
        self._faults.at("writing-snapshot", version)
        self._snapshots.write(buffer, self._replica.capture(), self.ledger.to_state(), position)
        self._watch.append(self._watch.own(Kind.SNAPSHOT, position, version, buffer))
        if self.ledger.snapshots.latest == (buffer, version, position):
            self._snapshots.announce(buffer)
            self._watch.log.cut(position)

    def _adopt(self, at_least: int) -> None:
        """Becomes the latest snapshot of at least that version, waiting for one if need be."""
        while True:
            self._wait(lambda: self._snapshot_version() >= at_least, "for a snapshot to catch up with")
            latest = self.ledger.snapshots.latest
            assert latest is not None
            contents = self._snapshots.read(latest.buffer)
            self._watch.refresh()
            if contents is not None and self.ledger.snapshots.latest == latest:
                self._replica.adopt(contents)
                self._replica.version = latest.version
                return

    def _snapshot_version(self) -> int:
        latest = self.ledger.snapshots.latest
        return -1 if latest is None else latest.version

    # -- reducing --------------------------------------------------------------------------------------------------

    def _assist(self) -> bool:
        """Moves the run along while waiting. True if that changed something worth another look."""
        sealed = self.ledger.reducing
        if sealed is None:
            return self._watch.seal_if_due() or self._write_overdue_snapshot()
        mark = tag(sealed)
        tried, since = self._tried
        helping = tried == mark
        if helping and time.monotonic() - since < SLICE_S:
            return False
        event = self._work(sealed, helping)
        self._tried = (mark, time.monotonic())
        if event is None:
            return False
        self._watch.append(event)
        return True

    def _work(self, sealed: Round, helping: bool) -> Event | None:
        """This rank's part of the reduction, or a new attempt where a stopped rank still uses the slot."""
        self._holds.take(sealed)
        try:
            if not self._is_current(sealed):
                return None
            if self._holds.others_use(sealed.slot, tag(sealed), self._watch.living()):
                return self._another_attempt(sealed)
            places = {c.rank: place for place, c in enumerate(sealed.contributions)}
            return self._reduction.work(sealed, places.get(self.rank, self.rank), helping)
        finally:
            self._holds.release()

    def _another_attempt(self, sealed: Round) -> Event | None:
        living = self._watch.living()
        free = next((s for s in self.ledger.free_slots() if not self._holds.others_use(s, 0, living)), None)
        if free is None:
            return None
        self._faults.at("opening-attempt", sealed.number)
        return Event(Kind.ATTEMPT, self.rank, round=sealed.number, place=free, attempt=sealed.attempt + 1)

    def _is_current(self, sealed: Round) -> bool:
        self._watch.refresh()
        current = self.ledger.reducing
        return current is not None and tag(current) == tag(sealed)

    # -- details ---------------------------------------------------------------------------------------------------

    def _wait(self, until: Callable[[], bool], purpose: str) -> None:
        if not until():
            self._watch.wait(until, self._assist, purpose)

    def _free_row(self) -> int:
        """A row to write into. Both can be taken only for a moment, after this rank was restarted."""
        row = self.ledger.free_row(self.rank)
        if row is None:
            self._wait(lambda: self.ledger.free_row(self.rank) is not None, "for a row to become free")
            return self._free_row()
        return row

    def _vector_at(self, offset: int) -> list[torch.Tensor]:
        if offset not in self._views:
            region = self._memory.region(offset, self._memory.layout.vector_bytes)
            self._views[offset] = self._vector.views(region)
        return self._views[offset]
