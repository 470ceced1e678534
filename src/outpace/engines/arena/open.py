"""Opens an engine on one machine: lays out the arena, meets the other ranks, joins. Several hosts begin here, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from outpace.engines.agreement import description_of
from outpace.engines.arena.arena import Files, header_bytes
from outpace.engines.arena.kernel import Bell, Faults, Life
from outpace.engines.arena.layout import Arena, ArenaLayout
from outpace.engines.arena.log import ArenaLog, LogFile
from outpace.engines.arena.memory import ArenaMemory, Holds, Reducing
from outpace.engines.arena.reduction import Helper
from outpace.engines.arena.rendezvous import Rendezvous
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.engines.engine import Drive, Engine, Opened, run
from outpace.engines.sums import RowSums
from outpace.errors import OutpaceError
from outpace.job.environment import Gathering
from outpace.protocol.results import Results
from outpace.protocol.rules import Rules
from outpace.replica.replica import OptimizerReplica
from outpace.vector import VectorLayout, packed


class Plan(NamedTuple):
    """What follows from a replica and its rules: vectors, the arena, and what ranks compare."""

    vector: VectorLayout
    published: VectorLayout
    layout: ArenaLayout
    description: dict[str, Any]


def plan_of(replica: OptimizerReplica, rules: Rules, max_grad_norm: float | None) -> Plan:
    """The same on all ranks that agree."""
    vector = VectorLayout.of(replica.named_parameters())
    published = VectorLayout.of((f"published {i}", tensor) for i, tensor in enumerate(replica.published()))
    description = description_of(replica, vector, rules, max_grad_norm)
    layout = ArenaLayout.of(
        world=rules.world,
        slots=Results(rules).slots,
        vector_bytes=vector.nbytes,
        chunks=len(vector.chunks()),
        tensors=len(vector.entries),
        hyper_bytes=len(replica.hyper),
        buffer_bytes=packed(replica.to_exchange())[1],
        extra_bytes=replica.extra_bytes(),
        header_bytes=header_bytes(description),
        rows=rules.rows,
        published_rows=0 if rules.publishes is None else rules.publishes.rows * rules.world,
        published_bytes=published.nbytes,
    )
    return Plan(vector, published, layout, description)


class Parts:
    """One rank's files in the arena and what reads them: what an engine on this machine is put together from."""

    def __init__(self, plan: Plan, rules: Rules, rank: int, rendezvous: Rendezvous) -> None:
        self.plan, self.rules, self.rank = plan, rules, rank
        self.files: Files = rendezvous.enter(plan.description, plan.layout, rules.max_staleness)
        self.arena = Arena(self.files.arena, plan.layout)
        self.life = Life(self.files.life)
        self.bell = Bell(self.arena.word)
        self.snapshots = SnapshotStore(self.arena)
        self.holds = Holds(self.arena, rank)
        self.faults = Faults()

    def engine(
        self, replica: OptimizerReplica, log: ArenaLog, reducing: Reducing | None, at_end: Callable[[], None] | None
    ) -> Engine:
        plan, exchanged = self.plan, replica.to_exchange()
        views = (self.files, self.arena, self.rank, plan.vector, plan.published, exchanged)
        memory = ArenaMemory(*views, self.snapshots, self.holds, log, reducing, replica.staging)

        def close() -> None:
            log.close()
            memory.close()

        return Engine(self.rank, self.rules, log, memory, replica, close=close, at_end=at_end)


def open_local(
    replica: OptimizerReplica, rules: Rules, gathering: Gathering, max_grad_norm: float | None, timeout_s: float
) -> Opened:
    """A running engine. Blocks until every rank of the world is there."""
    plan, (place, store, name) = plan_of(replica, rules, max_grad_norm), gathering
    rendezvous = Rendezvous(store, name, place.rank, range(place.world), timeout_s, restarts=rules.restarts)
    parts = Parts(plan, rules, place.rank, rendezvous)
    file, bell = LogFile(parts.files.log), parts.bell
    log = ArenaLog(place.rank, rules, file, parts.snapshots, bell, parts.life, parts.faults, timeout_s)
    sums = RowSums(parts.arena.bytes, plan.vector.chunks(), rules, max_grad_norm)
    helper = Helper(place.rank, parts.arena, sums, parts.holds, log)
    engine = parts.engine(replica, log, helper.help, rendezvous.end if rules.restarts else None)
    start(engine, parts, run)
    return Opened(engine)


def start(engine: Engine, parts: Parts, drive: Drive) -> None:
    """Takes this rank's life and joins. Blocks until every rank of the world is there."""
    rank, life = engine.rank, parts.life
    if not life.take(rank):
        raise OutpaceError(
            f"rank {rank} still lives as process {life.holder(rank)}; it may wake up and write. "
            "End it before you start its replacement"
        )
    try:
        parts.holds.release()
        drive(engine.join)
    except BaseException:
        engine.close()
        raise
