"""Ranks that share the memory of one machine: where things lie, how they are written and read.

Every decision comes from the ledger, every wait goes through the watch. Who reduces a sealed round is not decided here:
the ranks themselves on one machine (`LocalEngine`), an agent where there are several (`cluster.ClusterEngine`).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import torch

from outpace.engines.arena import arena
from outpace.engines.arena.arena import Memory
from outpace.engines.arena.buffers import BufferRows
from outpace.engines.arena.faults import Faults
from outpace.engines.arena.holds import Holds
from outpace.engines.arena.layout import NOTES_BYTES, ArenaLayout
from outpace.engines.arena.life import Life
from outpace.engines.arena.rendezvous import Meeting
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.engines.arena.watch import Watch
from outpace.engines.replicas import ReplicaEngine, T
from outpace.engines.sums import join_meta, meta_of, same_bits_with_any_threads
from outpace.errors import OutpaceError
from outpace.interface import Contents, Notes, Replica, Result, Work, run
from outpace.protocol.events import Event
from outpace.protocol.ledger import Ledger
from outpace.protocol.outcome import Outcome
from outpace.protocol.round import Round
from outpace.protocol.rules import Rules
from outpace.vector import VectorLayout


class ArenaEngine(ReplicaEngine):
    """One rank's way to the others on this machine, through shared memory."""

    def __init__(
        self,
        replica: Replica,
        vector: VectorLayout,
        shared: VectorLayout,
        rules: Rules,
        layout: ArenaLayout,
        description: dict[str, Any],
        meeting: Meeting,
        rank: int,
        max_grad_norm: float | None,
        timeout_s: float,
    ) -> None:
        super().__init__(rank, rules, replica)
        self._meeting = meeting
        self._files = meeting.enter(description, layout, rules.max_staleness)
        self._memory = Memory(self._files.arena, layout)
        self._faults = Faults()
        self._life = Life(self._files.life)
        self._snapshots = SnapshotStore(self._memory)
        self._vector, self._dtypes = vector, {entry.dtype for entry in vector.entries}
        self._shared = shared
        self._max_grad_norm = max_grad_norm
        self._holds = Holds(self._memory, rank)
        self._buffers = BufferRows(self._memory, replica.meeting())
        self._views: dict[int, list[torch.Tensor]] = {}
        self._watch = self._make_watch(timeout_s)

    @abstractmethod
    def _make_watch(self, timeout_s: float) -> Watch:
        """How this rank reads the log and waits."""

    @abstractmethod
    def _reduce(self, sealed: Round) -> bool:
        """Does what this rank can do for a sealed round. True if that changed something worth another look."""

    @property
    def ledger(self) -> Ledger:
        """This rank's ledger."""
        return self._watch.ledger

    @property
    def waited_s(self) -> float:
        """Seconds this rank has spent waiting for others."""
        return self._watch.waited_s

    def run(self, call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """All waiting is inside the calls, so that a coroutine simply runs to its end."""
        return run(call(*arguments))

    # -- beginning and end -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Takes this rank's life and joins. Blocks until every rank of the world is there."""
        if not self._life.take(self.rank):
            raise OutpaceError(
                f"rank {self.rank} still lives as process {self._life.holder(self.rank)}; it may wake up and write. "
                "End it before you start its replacement"
            )
        try:
            self._holds.release()
            self.run(self.join)
        except BaseException:
            self.close()
            raise

    async def finish(self) -> None:
        """Leaves the quorum, applies until all have finished, and lets those know who may be started again."""
        await super().finish()
        if self.rules.restarts:
            self._meeting.end()

    def close(self) -> None:
        """Gives up this rank's life and its files. Pending work stays in the ledger."""
        if self._files is None:
            return
        self._watch.close()
        self._holds.release()
        files, self._files = self._files, None  # type: ignore[assignment]
        arena.remove_directory(files)
        files.close()
        self._views.clear()
        self._memory.close()

    # -- the log ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._watch.refresh()

    def _append(self, event: Event) -> Outcome:
        return self._watch.append(event)

    def _position(self) -> int:
        return self._watch.position

    async def _until(self, predicate: Callable[[], bool], purpose: str) -> None:
        if not predicate():
            self._watch.wait(predicate, self._assist, purpose)

    # -- rows and results ------------------------------------------------------------------------------------------

    def row_views(self, row: int) -> list[torch.Tensor]:
        """This rank's row as tensors shaped like the parameters."""
        return self._vector_at(self._memory.layout.row(self.rank, row))

    async def _deposit(self, row: int, work: Work, onto: int | None) -> None:
        earlier = None if onto is None else self.row_views(onto)
        present, hyper = self._replica.deposit(self.row_views(row), work, earlier)
        self._faults.at("depositing", self._replica.version)
        self._memory.write_meta(self._memory.layout.row_meta(self.rank, row), join_meta(present, hyper))

    async def _apply(self, record: Round) -> None:
        """Reads the result in place. Its slot cannot be reused while this rank holds it."""
        self._holds.take(record)
        try:
            self._watch.refresh()
            if self.ledger.completed.get(record.number) is not record:
                return  # no longer kept: the caller adopts a snapshot
            layout = self._memory.layout
            present, hyper = meta_of(record, self._memory.read_meta(layout.slot_meta(record.slot)))
            self._faults.at("applying", record.number)
            result = Result(record, self._vector_at(layout.slot(record.slot)), present, hyper)
            with same_bits_with_any_threads(self._dtypes):
                self._replica.apply(self.own(result))
        finally:
            self._holds.release()

    def _row_of(self, row: int) -> list[torch.Tensor]:
        offset = self._memory.layout.published(row)
        if offset not in self._views:
            region = self._memory.region(offset, self._memory.layout.published_bytes)
            self._views[offset] = self._shared.views(region)
        return self._views[offset]

    def _note(self, row: int, notes: Notes) -> None:
        numbers = self._memory.numbers(self._memory.layout.notes(row), 1 + len(notes), "d")
        numbers[0] = len(notes)
        for index, value in enumerate(notes):
            numbers[1 + index] = value

    def _notes_of(self, row: int) -> Notes:
        numbers = self._memory.numbers(self._memory.layout.notes(row), NOTES_BYTES // 8, "d")
        return tuple(numbers[1 : 1 + int(numbers[0])])

    async def compute(self, parts: int = 1) -> None:
        """Computing has really taken its time."""

    def now_s(self) -> float:
        """Seconds on this machine's clock."""
        return time.monotonic()

    def pending(self) -> list[dict[str, Any]]:
        """Copies of this rank's rows that no round has taken in yet."""
        if self._files is None:
            return []
        self._watch.refresh()
        layout, found = self._memory.layout, []
        for c in self.ledger.pending(self.rank):
            row = self._memory.region(layout.row(self.rank, c.row), self._vector.nbytes)
            meta = self._memory.read_meta(layout.row_meta(self.rank, c.row))
            found.append(
                {"version": c.version, "samples": c.samples, "planned": c.planned, "row": row.clone(), "meta": meta}
            )
        return found

    async def give_again(self, pending: dict[str, Any]) -> None:
        """Contributes a row that `pending` copied."""
        row = await self._free_row()
        layout = self._memory.layout
        self._memory.region(layout.row(self.rank, row), self._vector.nbytes).copy_(pending["row"])
        self._memory.write_meta(layout.row_meta(self.rank, row), pending["meta"])
        self._arrive(row, pending["version"], pending["samples"], pending["planned"])

    # -- snapshots and buffers -------------------------------------------------------------------------------------

    async def _save(self, buffer: int, position: int) -> None:
        self._faults.at("writing-snapshot", self._replica.version)
        self._snapshots.write(buffer, self._replica.capture(), self.ledger.to_state(self._replica.version), position)

    def _saved(self, buffer: int, position: int) -> None:
        self._snapshots.announce(buffer)
        self._watch.log.cut(position)

    def _load(self, buffer: int) -> Contents | None:
        return self._snapshots.read(buffer)

    def _leave_buffers(self, place: int) -> None:
        self._buffers.write(place, self.rank, self._replica.meeting())

    def _average_buffers(self, place: int, ranks: Iterable[int]) -> None:
        self._replica.meet([self._buffers.read(place, rank) for rank in sorted(ranks)])

    def _assist(self) -> bool:
        """Moves the run along while waiting. True if that changed something worth another look."""
        sealed = self.ledger.reducing
        if sealed is not None:
            return self._reduce(sealed)
        return self._watch.seal_if_due() or self._write_overdue_snapshot()

    def _write_overdue_snapshot(self) -> bool:
        if not self._snapshot_is_overdue():
            return False
        run(self._write_snapshot())
        return True

    def _vector_at(self, offset: int) -> list[torch.Tensor]:
        if offset not in self._views:
            nbytes = self._memory.layout.vector_bytes
            self._memory.touch(offset, nbytes)
            region = self._memory.region(offset, nbytes)
            self._views[offset] = self._vector.views(region)
        return self._views[offset]
