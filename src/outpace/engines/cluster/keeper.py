"""A rank's eye on its host's agent: starts one when there is none. Owns the processes it started, no other rank's.

Whoever notices first starts; the kernel's lock decides who that is. An agent that is merely stopped is left alone: it
will go on, and until then nothing can be lost.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from outpace.engines.arena.kernel import Life
from outpace.engines.cluster.desk import Desk
from outpace.engines.cluster.orders import Orders
from outpace.errors import OutpaceError, TimedOut

MOST_STARTS, WITHIN_S = 5, 60.0
_LOOK_S = 0.1


class Keeper:
    """Sees to it that the host has an agent."""

    def __init__(self, orders: Orders, desk: Desk, life: Life, where: str, env: dict[str, str]) -> None:
        self._orders, self._desk, self._life, self._where = orders, desk, life, where
        self._env = env  # by which the agent finds the store
        world = orders.layout["world"]
        self._agent, self._start = world, world + 1  # whose lives: the agent's, and of who is starting one
        self._looked = 0.0
        self._starts: list[float] = []
        self._children: list[subprocess.Popen[bytes]] = []

    def look(self) -> None:
        """Raises if the agent has given up, and starts another one if it is gone. Costs little when called often."""
        self._desk.check(self._where)
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        for child in self._children:
            child.poll()  # no zombies
        if not self._life.lives(self._agent) and self._life.take(self._start):
            try:
                if not self._life.lives(self._agent):
                    self._desk.check(self._where)
                    self._start_one(now)
            finally:
                self._life.drop(self._start)

    def _start_one(self, now: float) -> None:
        self._starts = [*(s for s in self._starts if now - s < WITHIN_S), now]
        if len(self._starts) > MOST_STARTS:
            raise OutpaceError(
                f"{self._where} the agent of this host ended {MOST_STARTS} times within {WITHIN_S:.0f} s; why is on "
                "its standard error, above"
            )
        self._desk.begin()
        command = [sys.executable, "-m", "outpace.engines.cluster"]
        env = {"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ, **self._env}
        child = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=self._orders.fds,
            start_new_session=True,
        )
        self._children.append(child)
        assert child.stdin is not None
        try:
            child.stdin.write(self._orders.written())
            child.stdin.close()
        except BrokenPipeError:
            return  # it ended at once; the next look sees that
        while child.poll() is None and not self._life.lives(self._agent):
            if time.monotonic() - now > self._orders.timeout_s:
                child.kill()
                raise TimedOut(
                    f"{self._where} the agent of this host, process {child.pid}, did not begin within "
                    f"{self._orders.timeout_s:.0f} s. See whether it was stopped, or raise timeout_s"
                )
            time.sleep(0.005)  # the lock on starting is kept so long
