"""Timing alone: who waits for whom in a scenario, without a tensor; and by what such a run is judged."""

from __future__ import annotations

from heapq import heapify, heapreplace

from outpace.engines.engine import Engine
from outpace.engines.virtual.clock import Clock
from outpace.engines.virtual.log import VirtualLog
from outpace.engines.virtual.memory import timed_engine
from outpace.engines.virtual.world import World
from outpace.interface import Work
from outpace.protocol.ledger import Ledger
from outpace.simulation.run import Progress, Run, Timing, Watcher
from outpace.simulation.scenario import Scenario
from outpace.strategies import Strategy, strategy

WORK = Work()


def simulate_timing(
    choice: str | Strategy, scenario: Scenario, progress: Progress | None = None, watch: Watcher | None = None
) -> Timing:
    """Runs a strategy through a scenario in simulated time. Blocks; the same arguments give the same log.

    >>> run = simulate_timing("allreduce", Scenario(ranks=4, steps=10, imbalance="slow:factor=2", network="zero"))
    >>> run.seconds, run.throughput  # ten steps of 200 ms by four ranks
    (2.0, 20.0)
    """
    chosen = strategy(choice)
    world = World(Clock(), Ledger(chosen.rules(scenario.ranks)), scenario.links, scenario.payload_bytes)
    logs = [VirtualLog(world, rank, scenario.pace(rank)) for rank in range(scenario.ranks)]
    run = _TimedRun(chosen, scenario, world, logs, [timed_engine(log) for log in logs], progress, watch)
    run.to_its_end()
    return run.timing(choice)


class _TimedRun(Run):
    """Ranks without tensors."""

    def _compute(self, engine: Engine) -> Work:
        return WORK

    async def _leave(self, engine: Engine) -> None:
        engine.leave()


# -- what can be said of a scenario without any strategy --------------------------------------------------------------


def ideal_throughput(scenario: Scenario) -> float:
    """Steps per second if nobody ever waited and communication cost nothing. Split data last as long as the slowest."""
    paces = [scenario.compute_ns(rank) for rank in range(scenario.ranks)]
    if scenario.is_split:
        slowest = max(sum(map(pace, range(scenario.steps))) for pace in paces)
        return scenario.ranks * scenario.steps / (slowest / 1e9) if slowest else float("inf")
    ends = [(pace(0), rank, 0) for rank, pace in enumerate(paces)]
    heapify(ends)
    now = 0
    for _ in range(scenario.ranks * (scenario.steps - 1)):
        now, rank, step = ends[0]
        heapreplace(ends, (now + paces[rank](step + 1), rank, step + 1))
    under_way = sum(1 - (end - now) / paces[rank](step) for end, rank, step in ends if end > now)
    return (scenario.ranks * (scenario.steps - 1) + under_way) / (now / 1e9) if now else float("inf")


def mean_compute_s(scenario: Scenario) -> list[float]:
    """How long each rank computes, mean over its first `steps` steps."""
    paces = [scenario.compute_ns(rank) for rank in range(scenario.ranks)]
    totals = [0] * scenario.ranks
    for step in range(scenario.steps):  # step by step, because a model may draw for all ranks at once
        for rank, pace in enumerate(paces):
            totals[rank] += pace(step)
    return [total / scenario.steps / 1e9 for total in totals]


def full_round_s(scenario: Scenario) -> float:
    """What a round of all ranks costs, from the last one's gradients being ready until everybody has the result.

    With a store it is the least: nobody is in anybody's way there.
    """
    links, world, payload = scenario.links, scenario.ranks, scenario.payload_bytes
    known = links.arrive_ns(world, payload) + links.reduce_ns(world, range(world), payload)
    return known / 1e9 + links.end_s(world)
