"""The memory of simulated ranks, and the time its use takes: with tensors of this process, or with none at all."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch

from outpace.engines.engine import Engine
from outpace.engines.memory import Term
from outpace.engines.replay import REPLAY_AT_MOST
from outpace.engines.sums import RowSums, done, join_meta, mean_of, merged_meta, meta_of, mixed
from outpace.engines.virtual.clock import sleep
from outpace.engines.virtual.world import VirtualLog
from outpace.interface import Contents, Mixed, Notes, Own, Result, Tensors
from outpace.protocol.events import Event, Refuse
from outpace.protocol.ledger import Ledger
from outpace.protocol.published import Publication
from outpace.protocol.round import Results, Round
from outpace.protocol.rules import Rules
from outpace.replica.staging import Staging
from outpace.vector import VectorLayout


class SharedTensors:
    """The memory that all simulated ranks share. Pages cost nothing until they are written."""

    def __init__(self, vector: VectorLayout, rules: Rules, max_grad_norm: float | None = None) -> None:
        self.vector = vector
        self.snapshots: dict[int, Contents] = {}
        self.exchanged: dict[tuple[int, int], list[torch.Tensor]] = {}  #: (place, rank) -> what a rank left there
        self.published: dict[int, list[torch.Tensor]] = {}  #: by row
        self._world, self._rows = rules.world, rules.rows
        vectors = rules.rows * rules.world + Results(rules).slots
        self._memory = torch.zeros(vectors * vector.nbytes, dtype=torch.uint8, device="cpu")
        self._sums = RowSums(self._memory, vector.chunks(), rules, max_grad_norm)
        self.row_metas: dict[tuple[int, int], bytes] = {}
        self._slot_metas: dict[int, bytes] = {}
        self._views: dict[int, list[torch.Tensor]] = {}

    def row(self, rank: int, row: int) -> list[torch.Tensor]:
        return self._vector_at(self._row_at(rank, row))

    def copy_of_row(self, rank: int, row: int) -> tuple[torch.Tensor, bytes]:
        at = self._row_at(rank, row)
        return self._memory[at : at + self.vector.nbytes].clone(), self.row_metas[rank, row]

    def put_row(self, rank: int, row: int, copy: tuple[torch.Tensor, bytes]) -> None:
        at = self._row_at(rank, row)
        self._memory[at : at + self.vector.nbytes].copy_(copy[0])
        self.row_metas[rank, row] = copy[1]

    def result(self, record: Round) -> Result:
        present, hyper = meta_of(record, self._slot_metas.get(record.slot, b""))
        return Result(record, self._vector_at(self._slot_at(record.slot)), present, hyper)

    def reduce(self, sealed: Round) -> Event:
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
        metas = (self.row_metas[c.rank, c.row] for c in sealed.contributions)
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


class SimulatedMemory:
    """The time that calls take, with or without tensors."""

    def __init__(self, log: VirtualLog) -> None:
        self._log, self._world, self._rank = log, log.world, log.rank
        self._apply_ns = log.speed.apply_ns

    def reduce(self, sealed: Round) -> Event | None:
        """The world reduces: a sealed round is complete when its reduction would be."""
        return None

    def notes(self, row: int) -> Notes:
        return self._world.notes.get(row, ())

    async def _send(self, row: int, notes: Notes, readers: Collection[int]) -> None:
        """Published weights take as long to arrive as a contribution. Agents send one row of a rank at a time."""
        agents = self._world.agents
        if agents is not None and self._world.averaging is None:
            await sleep(agents.rows_there_in_ns([self._rank]))
            agents.send(self._rank, readers)
        await sleep(self._world.arrive_ns)
        await self._log.until_committed()
        self._world.notes[row] = notes

    async def _fetch(self, terms: Sequence[Term], together: bool) -> None:
        others = [place.rank for place, _ in terms if place.rank != self._rank]
        await sleep(self._world.travel_ns(self._rank, others, together))

    async def _fetch_from_all(self, ranks: Sequence[int]) -> None:
        world = self._world
        if world.averaging is not None and world.agents is not None:
            await sleep(world.agents.mean_there_in_ns(self._rank) + world.travel_ns(self._rank, (), False))
        else:
            await sleep(world.travel_of_all_ns(ranks))


class TensorMemory(SimulatedMemory):
    has_tensors = True

    def __init__(self, log: VirtualLog, tensors: SharedTensors, staging: Staging) -> None:
        super().__init__(log)
        self._tensors, self._staging = tensors, staging

    def row(self, row: int) -> Tensors:
        return self._tensors.row(self._rank, row)

    async def deposited(self, row: int, described: tuple[bytes, bytes]) -> None:
        """Waits as long as it takes until the arrival can be in the log."""
        self._tensors.row_metas[self._rank, row] = join_meta(*described)
        await sleep(self._world.arrive_ns)
        await self._log.until_committed()

    def copy_row(self, row: int) -> tuple[torch.Tensor, bytes]:
        return self._tensors.copy_of_row(self._rank, row)

    def put_row(self, row: int, copy: tuple[torch.Tensor, bytes]) -> None:
        self._tensors.put_row(self._rank, row, copy)

    async def hold(self, record: Round) -> None:
        """Lets the time of applying pass first. The ledger shows if the slot is given to another round meanwhile."""
        await sleep(self._apply_ns)

    def result(self, record: Round) -> Result:
        return self._tensors.result(record)

    def release(self) -> None:
        """Nothing to release: no other rank runs while a result is read."""

    async def step_taken(self) -> None:
        """Takes as long as applying a round."""
        await sleep(self._apply_ns)

    async def publish(self, row: int, values: Tensors, notes: Notes, readers: Collection[int]) -> None:
        await self._send(row, notes, readers)
        self._write(row, self._staging.host(values))

    def put(self, row: int, values: Tensors | None) -> None:
        self._write(row, values or ())
        self._world.notes[row] = ()

    async def mix(self, terms: Sequence[Term], together: bool, own: Own | None = None) -> Mixed:
        await self._fetch(terms, together)
        mine = None if own is None else own._replace(tensors=self._staging.host(own.tensors))
        return mixed([(self._tensors.published[p.row], self.notes(p.row), share) for p, share in terms], mine)

    async def mean(self, places: Sequence[Publication], ranks: Sequence[int], own: Tensors | None) -> Mixed:
        await self._fetch_from_all(ranks)
        mine = None if own is None else self._staging.host(own)
        return mean_of([self._tensors.published[place.row] for place in places], mine)

    def copy(self, row: int) -> Mixed:
        return mean_of([self._tensors.published[row]])

    async def save(self, buffer: int, contents: Contents, version: int, ledger: Ledger, position: int) -> None:
        """Copying takes as long as applying a round."""
        copies = [t.clone() for t in self._staging.host(contents.everything)]
        self._tensors.snapshots[buffer] = contents.made_of(copies)
        await sleep(self._apply_ns)

    def load(self, buffer: int) -> Contents | None:
        return self._tensors.snapshots[buffer]

    def empty(self, buffer: int, keeps_ledger: bool, keeps_base: bool) -> None:
        """What is not kept reads as zeros."""
        emptied = self._tensors.snapshots.get(buffer)
        for tensor in () if emptied is None else emptied.tensors if keeps_base else emptied.everything:
            tensor.zero_()

    def tidy(self, number: int) -> None:
        """Nothing to free: unused memory costs nothing here."""

    def leave(self, place: int, tensors: Tensors) -> None:
        self._tensors.exchanged[place, self._rank] = [t.detach().clone() for t in self._staging.host(tensors)]

    def left(self, place: int, rank: int) -> Tensors:
        return self._tensors.exchanged[place, rank]

    def _write(self, row: int, values: Tensors) -> None:
        published = self._tensors.published
        if row not in published:  # of the same types as all others: a sum is of wider ones
            like = next(iter(published.values()), values)
            published[row] = [torch.empty_like(tensor) for tensor in like]
        torch._foreach_copy_(published[row], list(values))


class Nothing:
    """Stands in for what does not exist when only time is simulated: every call does nothing and returns None."""

    version = 0

    def __getattr__(self, name: str) -> Any:
        setattr(self, name, _nothing)  # found without this call from now on
        return _nothing


def _nothing(*given: object, **also: object) -> None:
    return None


class TimingMemory(SimulatedMemory, Nothing):
    """No tensors, only the time that each call takes."""

    has_tensors = False

    async def deposited(self, row: int, described: object) -> None:
        if self._world.arrive_ns:
            await sleep(self._world.arrive_ns)
        await self._log.until_committed()

    async def step_taken(self) -> None:
        if self._apply_ns:
            await sleep(self._apply_ns)

    async def publish(self, row: int, values: object, notes: Notes, readers: Collection[int]) -> None:
        await self._send(row, notes, readers)

    async def mix(self, terms: Sequence[Term], together: bool, own: object = None) -> Mixed:
        await self._fetch(terms, together)
        return Mixed()

    async def mean(self, places: object, ranks: Sequence[int], own: object) -> Mixed:
        await self._fetch_from_all(ranks)
        return Mixed()

    def copy(self, row: int) -> Mixed:
        return Mixed()


class TimedReplay:
    """Only counts rounds: a rank that missed some applies them in bulk, in the time that takes."""

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine.log, VirtualLog)
        self._apply_ns = engine.log.speed.apply_ns
        self.version = 0

    async def apply_until(self, version: int) -> None:
        """Adopting a snapshot takes as long as replaying one round more than `REPLAY_AT_MOST`."""
        missed = version - self.version
        if missed > 0:
            if self._apply_ns:
                await sleep(self._apply_ns * min(missed, REPLAY_AT_MOST + 1))
            self.version = version

    async def share_beginning(self) -> None:
        """There are no weights to start from."""

    def let_go(self) -> None:
        """Nothing is read."""

    async def stepped(self) -> None:
        """Nobody counts versions of weights that are not there."""


def timed_engine(log: VirtualLog) -> Engine:
    memory: Any = TimingMemory(log)
    return _placed(Engine(log.rank, log.ledger.rules, log, memory, Nothing(), TimedReplay), log)


def training_engine(log: VirtualLog, tensors: SharedTensors, replica: Any) -> Engine:
    return _placed(Engine(log.rank, log.ledger.rules, log, TensorMemory(log, tensors, replica.staging), replica), log)


def _placed(engine: Engine, log: VirtualLog) -> Engine:
    engine.placement = log.world.placement
    return engine
