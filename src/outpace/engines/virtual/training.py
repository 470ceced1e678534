"""Simulated ranks with real weights: true gradients, true staleness, in simulated time.

Owns the memory in which they meet: rows, results, snapshots and buffers, as in a real arena, but in one process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import torch

from outpace.engines.replicas import ReplicaEngine, T
from outpace.engines.sums import RowSums, done, join_meta, merged_meta, meta_of
from outpace.engines.virtual.clock import Waiters, sleep
from outpace.engines.virtual.engine import Pace, VirtualEngine
from outpace.engines.virtual.world import World
from outpace.interface import Contents, Notes, Replica, Result, Work
from outpace.protocol.events import Event, Refuse
from outpace.protocol.results import Results
from outpace.protocol.round import Round
from outpace.protocol.rules import Rules
from outpace.vector import VectorLayout

Driver = Callable[[Coroutine[Any, Any, Any]], Any]


class SharedTensors:
    """What lies in the memory all simulated ranks share. Pages that nobody writes cost nothing."""

    def __init__(self, vector: VectorLayout, rules: Rules, max_grad_norm: float | None = None) -> None:
        self.vector = vector
        self.snapshots: dict[int, Contents] = {}
        self.buffers: dict[tuple[int, int], list[torch.Tensor]] = {}  #: (place, rank) -> what a rank left there
        self.published: dict[int, list[torch.Tensor]] = {}  #: by row
        self._world, self._rows = rules.world, rules.rows
        vectors = rules.rows * rules.world + Results(rules).slots
        self._memory = torch.zeros(vectors * vector.nbytes, dtype=torch.uint8, device="cpu")
        self._sums = RowSums(self._memory, vector.chunks(), rules, max_grad_norm)
        self._row_metas: dict[tuple[int, int], bytes] = {}
        self._slot_metas: dict[int, bytes] = {}
        self._views: dict[int, list[torch.Tensor]] = {}

    def row(self, rank: int, row: int) -> list[torch.Tensor]:
        """A rank's row as tensors shaped like the parameters."""
        return self._vector_at(self._row_at(rank, row))

    def describe_row(self, rank: int, row: int, present: bytes, hyper: bytes) -> None:
        """What goes with a row: which parameters had gradients, and the hyper-parameters."""
        self._row_metas[rank, row] = join_meta(present, hyper)

    def copy_of_row(self, rank: int, row: int) -> tuple[torch.Tensor, bytes]:
        """A row and what goes with it."""
        at = self._row_at(rank, row)
        return self._memory[at : at + self.vector.nbytes].clone(), self._row_metas[rank, row]

    def put_row(self, rank: int, row: int, copy: tuple[torch.Tensor, bytes]) -> None:
        """The inverse of `copy_of_row`."""
        at = self._row_at(rank, row)
        self._memory[at : at + self.vector.nbytes].copy_(copy[0])
        self._row_metas[rank, row] = copy[1]

    def result(self, record: Round) -> Result:
        """A round's result, read in place."""
        present, hyper = meta_of(record, self._slot_metas.get(record.slot, b""))
        return Result(record, self._vector_at(self._slot_at(record.slot)), present, hyper)

    def reduce(self, sealed: Round) -> Event:
        """Sums the rows of a sealed round into its slot."""
        sums = self._sums
        terms = sums.terms(sealed, [self._row_at(c.rank, c.row) for c in sealed.contributions])
        squares = []
        for index, place in enumerate(sums.chunks_at(self._slot_at(sealed.slot))):
            summed, scale = sums.sum(index, terms)
            squares.append(sums.sum_of_squares(summed, scale))
            bad = None if math.isfinite(squares[-1]) else sums.culprit(index, terms, sealed)
            if bad is not None:
                return Refuse(bad.rank, bad.incarnation, bad.step, sealed.number)
            torch.mul(summed, scale, out=place)
        metas = (self._row_metas[c.rank, c.row] for c in sealed.contributions)
        self._slot_metas[sealed.slot] = merged_meta(sealed, metas)
        return done(0, sealed, sums.clip(squares))

    def _row_at(self, rank: int, row: int) -> int:
        return (row * self._world + rank) * self.vector.nbytes

    def _slot_at(self, slot: int) -> int:
        return (self._rows * self._world + slot) * self.vector.nbytes

    def _vector_at(self, offset: int) -> list[torch.Tensor]:
        if offset not in self._views:
            self._views[offset] = self.vector.views(self._memory[offset : offset + self.vector.nbytes])
        return self._views[offset]


class TrainingEngine(VirtualEngine, ReplicaEngine):
    """A simulated rank with a replica of its own."""

    def __init__(
        self,
        world: World,
        tensors: SharedTensors,
        rank: int,
        replica: Replica,
        pace: Pace,
        driver: Driver | None = None,
    ) -> None:
        super().__init__(rank, world.ledger.rules, replica)
        self._world = world
        self._tensors = tensors
        self._pace = pace
        self._driver = driver

    def run(self, call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Runs a call for a rank that is a thread, not a coroutine."""
        if self._driver is None:
            raise RuntimeError("this simulated rank is a coroutine: await its calls")
        result: T = self._driver(call(*arguments))
        return result

    def close(self) -> None:
        """Nothing to give back."""

    def _position(self) -> int:
        return self._world.position

    async def local_step(self, work: Work) -> None:
        """As any rank's, in the time that applying takes."""
        await sleep(self._pace.apply_ns)
        await super().local_step(work)

    def _row_of(self, row: int) -> list[torch.Tensor]:
        found = self._tensors.published.get(row)
        if found is None:
            found = self._tensors.published[row] = [torch.zeros_like(t) for t in self._replica.published()]
        return found

    def _note(self, row: int, notes: Notes) -> None:
        self._world.notes[row] = notes

    async def _deposit(self, row: int, work: Work, onto: int | None) -> None:
        earlier = None if onto is None else self._tensors.row(self.rank, onto)
        present, hyper = self._replica.deposit(self._tensors.row(self.rank, row), work, earlier)
        self._tensors.describe_row(self.rank, row, present, hyper)
        await sleep(self._world.arrive_ns)
        await self._until_committed()

    async def _apply(self, record: Round) -> None:
        await sleep(self._pace.apply_ns)
        if self.ledger.completed.get(record.number) is record:
            self._replica.apply(self.own(self._tensors.result(record)))

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def pending(self) -> list[dict[str, Any]]:
        """Copies of this rank's rows that no round has taken in yet."""
        found = []
        for c in self.ledger.pending(self.rank):
            row, meta = self._tensors.copy_of_row(self.rank, c.row)
            found.append({"version": c.version, "samples": c.samples, "planned": c.planned, "row": row, "meta": meta})
        return found

    async def give_again(self, pending: dict[str, Any]) -> None:
        """Contributes a row that `pending` copied."""
        row = await self._free_row()
        self._tensors.put_row(self.rank, row, (pending["row"], pending["meta"]))
        self._arrive(row, pending["version"], pending["samples"], pending["planned"])

    # -- snapshots and buffers -------------------------------------------------------------------------------------

    async def _save(self, buffer: int, position: int) -> None:
        captured = self._replica.capture()
        self._tensors.snapshots[buffer] = Contents([t.clone() for t in captured.tensors], captured.plain)
        await sleep(self._pace.apply_ns)

    def _saved(self, buffer: int, position: int) -> None:
        """The log is a list that nobody cuts."""

    def _load(self, buffer: int) -> Contents | None:
        saved = self._tensors.snapshots[buffer]
        return Contents([t.clone() for t in saved.tensors], saved.plain)

    def _leave_buffers(self, place: int) -> None:
        self._tensors.buffers[place, self.rank] = [b.detach().clone() for b in self._replica.meeting()]

    def _average_buffers(self, place: int, ranks: Iterable[int]) -> None:
        self._replica.meet([self._tensors.buffers[place, rank] for rank in sorted(ranks)])

    async def _park(self, waiters: Waiters) -> None:
        """Writes an overdue snapshot while it waits."""
        if self._snapshot_is_overdue():
            return await self._write_snapshot()
        if self._snapshot_is_due():
            look_again = int(self._snapshot_patience_s() * 1e9) + 1
            self._world.clock.after(look_again, lambda: self._world.clock.wake(waiters))
        return await super()._park(waiters)
