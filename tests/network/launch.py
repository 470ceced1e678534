"""Starts a script on all hosts, under torchrun or without it, and collects what its ranks said.

    with torchrun(hosts, "train.py", "--steps", "100", ranks=2) as job:
        reports = job.reports()

Without torchrun (`plain`) nobody ends the other ranks when one dies. Ranks are numbered by host: those of host 0 first.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.network.commands import NetworkError
from tests.network.host import Host
from tests.network.namespaces import Hosts
from tests.support.processes import python_path

STORE = Path(__file__).parent / "programs" / "store.py"
TIMEOUT_S = 120.0
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
ATTEMPT = "attempt_0"
TAIL = 3000  #: characters of an output in an error message

_ports = itertools.count(29500)


class Job:
    """A script that runs on all hosts. Leaving its block kills everything that runs on them.

    What it said can be read as long as the hosts are there.
    """

    def __init__(
        self, hosts: Hosts, ranks: int, command: Sequence[str], env: Mapping[str, str], store_apart: bool = False
    ) -> None:
        self.hosts, self.ranks_per_host = list(hosts), ranks
        self.store_host = self.hosts.pop() if store_apart else self.hosts[0]  #: with nothing else on it if apart
        self._command, self._env, self._port = list(command), env, next(_ports)
        self.processes: list[subprocess.Popen[Any]] = []  #: one for each host, or for each rank without torchrun
        self._directory = hosts.directory / f"job{self._port}"

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return len(self.hosts) * self.ranks_per_host

    def start_store(self) -> None:
        """On the host that has nothing else on it."""
        with self._create(self.store_host, "launcher.log") as log:
            start = (sys.executable, str(STORE), self.store_host.address, str(self._port))
            self.processes.append(self.store_host.start(*start, env=self._env, stdout=log, stderr=subprocess.STDOUT))

    def start_torchrun(self) -> None:
        """On each host."""
        for host in self.hosts:
            options = {
                "--nnodes": len(self.hosts),
                "--nproc-per-node": self.ranks_per_host,
                "--rdzv-backend": "c10d",
                "--rdzv-endpoint": f"{self.store_host.address}:{self._port}",
                "--rdzv-id": "outpace",
                "--rdzv-conf": f"is_host={int(host.index == 0)}",  # it knows itself by the machine's name only
                "--local-addr": host.address,
                "--log-dir": self._path(host),
                "--redirects": 3,
            }
            words = [str(word) for option in options.items() for word in option]
            with self._create(host, "launcher.log") as log:
                start = (sys.executable, "-m", "torch.distributed.run", *words, *self._command)
                self.processes.append(host.start(*start, env=self._env, stdout=log, stderr=subprocess.STDOUT))

    def start_rank(self, rank: int, under: Sequence[str] = ()) -> None:
        """A rank without torchrun, also once more: what it says is added to what it said. `under` another command."""
        host, local = self._host(rank), rank % self.ranks_per_host
        place = {
            "RANK": rank,
            "WORLD_SIZE": self.world,
            "LOCAL_RANK": local,
            "LOCAL_WORLD_SIZE": self.ranks_per_host,
            "GROUP_RANK": host.index,
            "GROUP_WORLD_SIZE": len(self.hosts),
            "MASTER_ADDR": self.store_host.address,
            "MASTER_PORT": self._port,
            **({} if self.store_host in self.hosts else {"TORCHELASTIC_USE_AGENT_STORE": "True"}),
        }
        variables = {**self._env, **{name: str(value) for name, value in place.items()}}
        where = ("plain", ATTEMPT, str(local))
        with self._create(host, *where, "stdout.log") as out, self._create(host, *where, "stderr.log") as errors:
            command = (*under, sys.executable, *self._command)
            self.processes.append(host.start(*command, env=variables, stdout=out, stderr=errors))

    def codes(self) -> list[int | None]:
        """Exit codes of the processes that were started; None for one that runs. Does not wait."""
        return [process.poll() for process in self.processes]

    def wait(self, timeout_s: float = TIMEOUT_S) -> list[int]:
        """The exit codes, when all have ended."""
        self.until(lambda: None not in self.codes(), "all processes have ended", timeout_s)
        return [process.returncode for process in self.processes]

    def reports(self, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """The last line of each rank's output, which is JSON, when all have ended well."""
        codes = self.wait(timeout_s)
        if any(codes):
            raise NetworkError(f"exit codes {codes}\n{self.everything()}")
        return [json.loads(self.said(rank).splitlines()[-1]) for rank in range(self.world)]

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
        """Waits until the condition holds; not longer than there is a process that could make it so."""
        deadline = time.monotonic() + timeout_s
        while True:
            is_over = None not in self.codes()  # before looking: the last may say it and end
            if condition():
                return
            if is_over:
                raise NetworkError(f"exit codes {self.codes()}, and it is not so that {what}\n{self.everything()}")
            if time.monotonic() > deadline:
                raise NetworkError(f"after {timeout_s:g} s it was not so that {what}\n{self.everything()}")
            time.sleep(0.01)

    def said(self, rank: int) -> str:
        """A rank's standard output so far."""
        return self._output(rank, "stdout.log")

    def complained(self, rank: int) -> str:
        """A rank's standard error so far."""
        return self._output(rank, "stderr.log")

    def everything(self) -> str:
        """The ends of all outputs, for an error message."""
        of_ranks = [(f"rank {rank}", self.complained(rank) or self.said(rank)) for rank in range(self.world)]
        of_launchers = [(repr(host), _read(self._path(host, "launcher.log"))) for host in self.hosts]
        return "\n".join(f"-- {who}:\n{text[-TAIL:]}" for who, text in of_ranks + of_launchers if text)

    def pid(self, rank: int) -> int:
        """The process of a running rank."""
        found = [pid for pid in self._host(rank).pids() if _environment(pid).get("RANK") == str(rank)]
        mine = [process.pid for process in self.processes]
        for pid in found:  # processes that a rank has started have its environment, too
            if pid in mine or _parent(pid) in mine:
                return pid
        raise NetworkError(f"rank {rank} is not running on {self._host(rank)!r}\n{self.everything()}")

    def end(self) -> None:
        """Kills everything on these hosts; returns when it is gone."""
        for host in {*self.hosts, self.store_host}:
            host.kill()

    # -- details ---------------------------------------------------------------------------------------------------

    def _host(self, rank: int) -> Host:
        return self.hosts[rank // self.ranks_per_host]

    def _path(self, host: Host, *parts: str) -> Path:
        return self._directory.joinpath(f"host{host.index}", *parts)

    def _output(self, rank: int, name: str) -> str:
        """torchrun makes a directory of its own for each start."""
        found = self._path(self._host(rank)).glob(f"*/{ATTEMPT}/{rank % self.ranks_per_host}/{name}")
        return "".join(map(_read, found))

    def _create(self, host: Host, *parts: str) -> IO[bytes]:
        path = self._path(host, *parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")


def torchrun(
    hosts: Hosts,
    script: str | Path,
    *arguments: str,
    ranks: int,
    env: Mapping[str, str] | None = None,
    plain_gloo: bool = False,
) -> Job:
    """The script on all hosts under torchrun; does not wait. `plain_gloo` tells Gloo which interface is the network."""
    job = Job(hosts, ranks, [str(script), *arguments], _variables(env, plain_gloo, hosts))
    job.start_torchrun()
    return job


def plain(
    hosts: Hosts,
    script: str | Path,
    *arguments: str,
    ranks: int,
    env: Mapping[str, str] | None = None,
    plain_gloo: bool = False,
    store_apart: bool = False,
) -> Job:
    """As `torchrun`, but each rank is started by hand with torchrun's variables, and lives and dies alone. With
    `store_apart` the last host has no ranks, but the store, which else is rank 0's."""
    job = Job(hosts, ranks, [str(script), *arguments], _variables(env, plain_gloo, hosts), store_apart)
    if store_apart:
        job.start_store()
    for rank in range(job.world):
        job.start_rank(rank)
    return job


def _variables(env: Mapping[str, str] | None, plain_gloo: bool, hosts: Hosts) -> dict[str, str]:
    usual = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": python_path()}
    gloo = {GLOO_INTERFACE: hosts[0].interface} if plain_gloo else {}
    return {**usual, **gloo, **(env or {})}


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _environment(pid: int) -> dict[str, str]:
    words = _read_of_process(pid, "environ").split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def _parent(pid: int) -> int:
    fields = _read_of_process(pid, "stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def _read_of_process(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:  # it has ended
        return ""
