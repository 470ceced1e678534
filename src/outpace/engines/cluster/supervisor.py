"""A rank's supervision of its host's agent: starts one when there is none, and tells it what it needs to know.

Whoever notices first starts one; the kernel's lock decides who that is. An agent that is merely stopped is left alone:
it will go on, and until then nothing can be lost.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any, NamedTuple

from outpace.engines.arena.kernel import Life
from outpace.engines.cluster import nursery
from outpace.engines.cluster.shared_page import RUNNING, SharedPage
from outpace.errors import OutpaceError, TimedOut

MOST_STARTS, WITHIN_S = 5, 60.0
_LOOK_S = 0.1


class LaunchSpec(NamedTuple):
    """All that an agent needs to know. The job's key is in the arena."""

    name: str  #: of the meeting
    host: int
    layout: dict[str, int]
    rules: dict[str, Any]
    chunks: list[tuple[str, int, int]]
    tensors: int
    has_buffers: bool
    max_grad_norm: float | None
    timeout_s: float
    fds: tuple[int, ...]


def cluster_of(name: str) -> str:
    """Where the agents of a job meet in the store."""
    return f"outpace/{name}/cluster"


class AgentSupervisor:
    def __init__(self, spec: LaunchSpec, page: SharedPage, life: Life, where: str, env: dict[str, str]) -> None:
        self._spec, self._page, self._life, self._where = spec, page, life, where
        self._env = env  # by which the agent finds the store
        world = spec.layout["world"]
        self._agent, self._start = world, world + 1  # whose lives: the agent's, and of who is starting one
        self._looked = 0.0
        self._starts: list[float] = []

    def look(self) -> None:
        """Raises if the agent has given up, and starts another one if it is gone. Costs little when called often."""
        self._page.check(self._where)
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        if not self._life.lives(self._agent) and self._life.take(self._start):
            try:
                if not self._life.lives(self._agent):
                    self._page.check(self._where)
                    self._start_one(now)
            finally:
                self._life.drop(self._start)

    def _start_one(self, now: float) -> None:
        self._starts = [*(s for s in self._starts if now - s < WITHIN_S), now]
        if len(self._starts) > MOST_STARTS:
            raise OutpaceError(
                f"{self._where} the agent of this host ended {MOST_STARTS} times within {WITHIN_S:.0f} s; the reason "
                "is on its standard error, above"
            )
        self._page.status = RUNNING  # whatever became of the last one
        birth = nursery.nursery.bear(self._spec._asdict(), self._spec.fds, {**os.environ, **self._env})
        try:
            while not birth.has_ended() and not self._life.lives(self._agent):
                if time.monotonic() - now > self._spec.timeout_s:
                    nursery.nursery.end()
                    if birth.pid:
                        with suppress(ProcessLookupError):
                            os.kill(birth.pid, signal.SIGKILL)
                    raise TimedOut(
                        f"{self._where} the agent of this host, process {birth.pid or 'unknown'}, did not begin within "
                        f"{self._spec.timeout_s:.0f} s. See whether it was stopped, or raise timeout_s"
                    )
                time.sleep(0.005)  # the lock on starting is kept so long
        finally:
            birth.close()
