"""Ranks of several hosts, each a process that is started alone and can be started again.

`outpace.spawn` starts every rank once. Here a test has the processes in its own hands, as somebody who starts pods or
calls ssh has them.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outpace.engines.cluster import supervisor
from outpace.job.environment import environment_of
from outpace.job.store import open_store
from outpace.launching.leash import die_with_parent
from tests.support import host_faults


class Ranks:
    """The processes of one job. Leaving its block kills whoever is left."""

    def __init__(
        self, directory: Path, ranks: int, hosts: int, env: dict[str, str], fn: Callable[..., Any], *args: Any
    ) -> None:
        self._directory, self._ranks, self._hosts = directory, ranks, hosts
        self._env, self._call = env, (fn, args)
        self._store = open_store()
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["outpace.launching.preload"])
        self._running: dict[int, Any] = {}
        for rank in range(ranks):
            self.start(rank)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.join()

    def start(self, rank: int, **env: str) -> None:
        """Also once more."""
        place = environment_of(rank, self._ranks, self._store.port, self._hosts)
        process = self._processes.Process(
            target=_live, args=({**place, **self._env, **env}, self._said(rank), self._answer(rank), *self._call)
        )
        process.start()
        self._running[rank] = process

    def end_everything(self) -> None:
        """All ranks are killed, and the store is gone."""
        for process in self._running.values():
            process.kill()
        self._store = None

    def pids(self) -> list[int]:
        return [self._running[rank].pid for rank in range(self._ranks)]

    def reap(self, ranks: Sequence[int]) -> None:
        """These were killed."""
        for rank in ranks:
            self._running[rank].join()

    def code(self, rank: int) -> int | None:
        """Its exit code, when it has ended."""
        self._running[rank].join(host_faults.PATIENCE_S)
        return self._running[rank].exitcode

    def answers(self) -> list[Any]:
        """What each rank's last life returned, when all have ended well."""
        codes = [self.code(rank) for rank in range(self._ranks)]
        assert codes == [0] * self._ranks, f"{codes}\n" + "\n".join(map(self.errors, range(self._ranks)))
        return [pickle.loads(self._answer(rank).read_bytes()) for rank in range(self._ranks)]

    def errors(self, rank: int) -> str:
        """What all its lives wrote to standard error, and their agents."""
        return self._said(rank).read_text(errors="replace")

    def _said(self, rank: int) -> Path:
        return self._directory / f"{rank}.errors"

    def _answer(self, rank: int) -> Path:
        return self._directory / f"{rank}.answer"


def _live(env: dict[str, str], said: Path, answer: Path, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """One life of a rank."""
    die_with_parent()
    os.environ.update(env)
    with said.open("ab") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
    if env["LOCAL_RANK"] == "0":
        supervisor.fork_server.fork()  # as in `outpace.spawn`
    answer.write_bytes(pickle.dumps(fn(*args)))
