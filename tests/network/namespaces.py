"""Hosts that are network namespaces on this machine, joined by a bridge in a namespace of its own.

    with Hosts(2) as (one, other):
        other.shape(mbit_per_s=1000)
        one.start("python", "train.py")

Nothing of the machine's own network is touched. Whatever ends the process, nothing stays: it is taken down at the end
of the block, or by a process that watches this one, or, where that was killed too, by the next to build hosts.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.network.cleanup import DEADLINE_S, name_of, path_of, remove, stale
from tests.network.commands import NetworkError, run
from tests.network.host import LINK, Host

ROOT = Path(__file__).parents[2]
NETWORK = "10.77.0"
FIRST_ADDRESS = 11  #: torchrun numbers hosts in the order of their addresses as text, so that all have two digits
MOST_HOSTS = 40
BRIDGE = "bridge"

_serials = itertools.count()


class Hosts:
    """So many hosts, as a context manager; a sequence of `Host`."""

    def __init__(self, count: int) -> None:
        if not 1 <= count <= MOST_HOSTS:
            raise NetworkError(f"{count} hosts were asked for; there can be 1 to {MOST_HOSTS}")
        serial = next(_serials)
        self.bridge_namespace = name_of(serial, "bridge")
        self.directory = path_of(name_of(serial, "files"))  #: for what is to go with the hosts
        self._hosts = [
            Host(i, name_of(serial, f"host{i}"), self.bridge_namespace, f"{NETWORK}.{FIRST_ADDRESS + i}")
            for i in range(count)
        ]
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Hosts:
        remove(stale())
        self._watcher = _watcher(self.names)
        try:
            self.directory.mkdir(mode=0o700)
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    def __getitem__(self, index: int) -> Host:
        return self._hosts[index]

    @property
    def namespaces(self) -> list[str]:
        """The hosts', and the bridge's."""
        return [self.bridge_namespace, *(host.namespace for host in self)]

    @property
    def names(self) -> list[str]:
        """Of everything that is taken down at the end."""
        return [*self.namespaces, self.directory.name]

    @property
    def watcher_pid(self) -> int | None:
        """Who takes all down if this process cannot; None outside of the block."""
        return None if self._watcher is None else self._watcher.pid

    def close(self) -> None:
        """Ends all processes and takes everything down."""
        try:
            for host in self:
                with suppress(NetworkError):  # it was perhaps never built; what matters is what comes now
                    host.kill()
            remove(self.names)
        finally:
            watcher, self._watcher = self._watcher, None
            if watcher is not None:
                watcher.communicate(timeout=DEADLINE_S)  # closes its standard input

    def _build(self) -> None:
        for name in self.namespaces:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "dev", "lo", "up")
        ip = ("ip", "-n", self.bridge_namespace)
        run(*ip, "link", "add", BRIDGE, "type", "bridge", "forward_delay", "0")
        run(*ip, "link", "set", "dev", BRIDGE, "up")
        for host in self:
            run(*ip, "link", "add", host.port, "type", "veth", "peer", "name", LINK, "netns", host.namespace)
            run(*ip, "link", "set", "dev", host.port, "master", BRIDGE, "up")
            run("ip", "-n", host.namespace, "address", "add", f"{host.address}/24", "dev", LINK)
            run("ip", "-n", host.namespace, "link", "set", "dev", LINK, "up")


def why_not() -> str | None:
    """In words, why hosts cannot be built on this machine; None if they can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"`{tool}` is not installed (package iproute2)"
    try:
        with Hosts(1) as (host,):
            host.shape(1000)
            host.cut()
    except NetworkError as error:
        return f"the kernel refuses what the hosts are made of: {error}"
    return None


def _watcher(names: list[str]) -> subprocess.Popen[bytes]:
    """A process that removes these when this process has ended, in a session that Ctrl-C does not reach."""
    return subprocess.Popen(
        [sys.executable, "-S", "-m", "tests.network.cleanup", *names],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
