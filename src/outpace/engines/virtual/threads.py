"""Simulated ranks that are plain functions, each in a thread of its own. Only the thread with the baton runs.

Owns the baton and the state that a process would have to itself: environment variables and random generators are
swapped with the baton, so that a rank finds them as it left them. Between two waits a thread runs undisturbed, and the
clock decides the order: a run is as deterministic as with coroutines.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import torch

from outpace.engines.engine import Opened
from outpace.engines.virtual.clock import Clock, Request, Task
from outpace.protocol.rules import Rules
from outpace.replica.replica import OptimizerReplica

T = TypeVar("T")

_UNWIND_S = 5.0
_here = threading.local()


class SimulatedRank(Protocol):
    """The simulated rank that a thread runs."""

    def open(self, replica: OptimizerReplica, rules: Rules, max_grad_norm: float | None) -> Opened:
        """An engine for an optimizer made in this rank's thread. Waits until every rank has made one."""


def simulated_rank() -> SimulatedRank | None:
    return getattr(_here, "rank", None)


def become(rank: SimulatedRank) -> None:
    _here.rank = rank


class Killed(BaseException):
    """Raised inside a thread whose simulated rank was ended from outside."""


class ThreadTask(Task):
    def __init__(self, clock: Clock, function: Callable[[], None], environment: dict[str, str], seed: int) -> None:
        super().__init__(clock, _nothing())
        self._surroundings = Surroundings(environment, seed)
        self._function = function
        self._thread: threading.Thread | None = None
        self._turn = threading.Semaphore(0)  # the thread may run
        self._back = threading.Semaphore(0)  # the clock may run
        self._request: Request | None = None  # None: the function has returned
        self._raised: BaseException | None = None

    def drive(self, call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Runs a call to its end from within the thread, giving the baton back whenever it is suspended."""
        coroutine = call(*arguments)
        while True:
            try:
                self._request = coroutine.send(None)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            self._back.release()
            self._turn.acquire()
            if self.is_over:
                coroutine.close()
                raise Killed

    def kill(self) -> None:
        """Ends the thread where it is suspended, and waits until it has unwound."""
        super().kill()
        if self._thread is not None and self._thread.is_alive():
            self._turn.release()
            self._thread.join(_UNWIND_S)  # a thread that computes instead of waiting ends at its next step

    def _advance(self) -> Request:
        with self._surroundings:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="simulated rank", daemon=True)
                self._thread.start()
            else:
                self._turn.release()
            self._back.acquire()
        if self._raised is not None:
            raise self._raised
        if self._request is None:
            raise StopIteration
        return self._request

    def _run(self) -> None:
        try:
            self._function()
        except Killed:
            return
        except BaseException as error:
            self._raised = error
        self._request = None
        self._back.release()


class Surroundings:
    """The state that a rank's own process would have: put in place on entry, saved on exit.

    As in separate processes, torch's generator starts equal on all ranks, and Python's and numpy's do not.
    """

    def __init__(self, environment: dict[str, str], seed: int) -> None:
        self._environment = {**os.environ, **environment}
        self._generators = _fresh_generators(seed)

    def __enter__(self) -> None:
        self._outer = (dict(os.environ), _generators())
        _set_environment(self._environment)
        _set_generators(self._generators)

    def __exit__(self, *_: object) -> None:
        self._environment, self._generators = dict(os.environ), _generators()
        environment, generators = self._outer
        _set_environment(environment)
        _set_generators(generators)


def _set_environment(wanted: dict[str, str]) -> None:
    for key in [key for key in os.environ if key not in wanted]:
        del os.environ[key]
    for key, value in wanted.items():
        if os.environ.get(key) != value:
            os.environ[key] = value


def _fresh_generators(seed: int) -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    drawn = random.Random(seed)
    return (
        torch.get_rng_state(),
        drawn.getstate(),
        None if numpy is None else numpy.random.RandomState(drawn.getrandbits(32)).get_state(),
    )


def _generators() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), None if numpy is None else numpy.random.get_state()


def _set_generators(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if states[2] is not None:
        sys.modules["numpy"].random.set_state(states[2])


async def _nothing() -> None:
    """The body of a task that is a thread."""
