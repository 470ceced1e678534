"""Opens a local engine for a replica: lays out the arena, meets the other ranks, joins."""

from __future__ import annotations

from typing import Any, NamedTuple

from outpace.engines.agreement import description_of
from outpace.engines.arena.arena import header_bytes
from outpace.engines.arena.engine import LocalEngine
from outpace.engines.arena.layout import ArenaLayout
from outpace.engines.arena.rendezvous import Meeting
from outpace.job.environment import Gathering
from outpace.protocol.results import Results
from outpace.protocol.rules import Rules
from outpace.replica.replica import OptimizerReplica
from outpace.vector import VectorLayout, packed


class Plan(NamedTuple):
    """What follows from a replica and its rules: vectors, the arena, and what ranks compare."""

    vector: VectorLayout
    shared: VectorLayout  #: of published weights
    layout: ArenaLayout
    description: dict[str, Any]


def plan_of(replica: OptimizerReplica, rules: Rules, max_grad_norm: float | None) -> Plan:
    """The same on all ranks that agree."""
    vector = VectorLayout.of(replica.named_parameters())
    buffers = replica.meeting()
    shared = VectorLayout.of((f"published {i}", tensor) for i, tensor in enumerate(replica.published()))
    description = description_of(replica, vector, rules, max_grad_norm)
    layout = ArenaLayout.of(
        world=rules.world,
        slots=Results(rules).slots,
        vector_bytes=vector.nbytes,
        chunks=len(vector.chunks()),
        tensors=len(vector.entries),
        hyper_bytes=len(replica.hyper),
        buffer_bytes=packed(buffers)[1],
        extra_bytes=replica.extra_bytes(),
        header_bytes=header_bytes(description),
        rows=rules.rows,
        published_rows=0 if rules.publishes is None else rules.publishes.rows * rules.world,
        published_bytes=shared.nbytes,
    )
    return Plan(vector, shared, layout, description)


def open_local(
    replica: OptimizerReplica, rules: Rules, gathering: Gathering, max_grad_norm: float | None, timeout_s: float
) -> LocalEngine:
    """A running engine. Blocks until every rank of the world is there."""
    plan, (place, store, name) = plan_of(replica, rules, max_grad_norm), gathering
    meeting = Meeting(store, name, place.rank, range(place.world), timeout_s, restarts=rules.restarts)
    engine = LocalEngine(
        *(replica, plan.vector, plan.shared, rules, plan.layout, plan.description),
        *(meeting, place.rank, max_grad_norm, timeout_s),
    )
    engine.start()
    return engine
