"""A rank that takes part in rounds and trains nothing, and Gloo beside it: what is measured is the engine alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from outpace.engines.arena.open import open_local
from outpace.engines.cluster.open import open_cluster
from outpace.engines.engine import Engine, run
from outpace.interface import Result, Work
from outpace.job.environment import gather, whereami
from outpace.replica.replica import OptimizerReplica
from outpace.strategies import strategy

TIMEOUT_S = 120.0
#: Rounds for each rank of a host before measuring: until there has been a result in every slot, and every rank has
#: written a snapshot into both buffers, so that no page is touched for the first time while measuring.
WARM_UP = 16


class BareReplica(OptimizerReplica):
    """Takes part in rounds but trains nothing."""

    def __init__(self, elements: int, deposits: bool) -> None:
        self.weight = torch.nn.Parameter(torch.ones(elements))  # real memory, which zeros are not until written
        super().__init__(torch.optim.SGD([self.weight], lr=1.0), None)
        self.weight.grad = torch.ones(elements)
        self._deposits = deposits
        self.seen = self.weight.detach()

    def deposit(
        self, row: Sequence[torch.Tensor], work: Work, onto: Sequence[torch.Tensor] | None = None
    ) -> tuple[bytes, bytes]:
        """Copies the gradients, or leaves what lies in the row already."""
        return super().deposit(row, work, onto) if self._deposits else (b"\1", b"")

    def apply(self, result: Result) -> None:
        """Has the averaged vector, readable in place, as an optimizer would."""
        self.seen = result.gradients[0]
        self.version += 1


class BareRank:
    """A running engine, and one whole step on it."""

    def __init__(self, elements: int, choice: str, deposits: bool) -> None:
        gathering = gather(whereami(), TIMEOUT_S)
        place = gathering.place
        self._strategy = strategy(choice)
        self.replica = BareReplica(elements, deposits)
        self._warm_up = WARM_UP * place.local_world
        rules = self._strategy.rules(place.world)
        opening = open_local if place.is_one_host else open_cluster
        self.engine: Engine = opening(self.replica, rules, gathering, None, TIMEOUT_S).engine

    def step(self) -> None:
        run(self._strategy.step, self.engine, Work())

    def warm_up(self) -> None:
        for _ in range(self._warm_up):
            self.step()

    def close(self) -> None:
        run(self.engine.finish)
        self.engine.close()


def join_gloo() -> None:
    """Also the barrier of what is measured of ours: outside of the time that is taken."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else Gloo looks for the host's own name
    dist.init_process_group("gloo")


def per_call_s(call: Callable[[], object], times: int) -> float:
    """Mean seconds of back-to-back calls."""
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times
