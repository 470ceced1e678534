"""One host of a test's network: its link, which can be slowed down and cut, and its processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from tests.network.cleanup import DEADLINE_S, end_processes, pids_in
from tests.network.commands import NetworkError, run

PROBE = Path(__file__).parent / "probe.py"
LINK = "link"  #: what a host calls its interface
CLOSED_PORT = 9  #: where nobody listens
LISTENING = "0A"  #: in /proc/net/tcp
DROP_ALL = "1,6 0 0 2"  #: a classic BPF program of one instruction: return 2, which is TC_ACT_SHOT
#: loads the type of the frame, goes on if it is IPv4, loads an address, and drops the frame if it is this one
DROP_ADDRESS = "6,40 0 0 12,21 0 3 2048,32 0 0 {},21 0 1 {},6 0 0 2,6 0 0 4294967295"
IP_SOURCE, IP_DESTINATION = 26, 30  #: where they are in a frame
LEAST_BURST_BYTES = 128 * 1024  #: twice the largest packet before it is segmented
BURST_S, QUEUE_MS = 0.002, 50


class Traffic(NamedTuple):
    """Bytes that went over a host's link, with all headers."""

    sent_bytes: int
    received_bytes: int

    def since(self, before: Traffic) -> Traffic:
        """What was added."""
        return Traffic(self.sent_bytes - before.sent_bytes, self.received_bytes - before.received_bytes)


class Host:
    """A network namespace with an address of its own, joined to the others by a port of the bridge."""

    def __init__(self, index: int, namespace: str, bridge_namespace: str, address: str) -> None:
        self.index, self.namespace, self.address = index, namespace, address
        self.interface, self.port = LINK, f"port{index}"
        self._bridge_namespace = bridge_namespace
        self._is_cut = False
        self._started: list[subprocess.Popen[Any]] = []

    def __repr__(self) -> str:
        return f"host {self.index} ({self.address})"

    # -- its link --------------------------------------------------------------------------------------------------

    def shape(self, mbit_per_s: float) -> None:
        """Slows the link down to this rate, in each direction."""
        burst = max(LEAST_BURST_BYTES, int(mbit_per_s * 1e6 / 8 * BURST_S))
        rate = ("rate", f"{int(mbit_per_s * 1e6)}bit", "burst", str(burst), "latency", f"{QUEUE_MS}ms")
        for namespace, device in self._ends():
            run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *rate)

    def unshape(self) -> None:
        """As fast as the machine again; nothing where it was never shaped."""
        for namespace, device in self._ends():
            if " tbf " in run("tc", "-n", namespace, "qdisc", "show", "dev", device, "root"):
                run("tc", "-n", namespace, "qdisc", "delete", "dev", device, "root")

    def cut(self) -> None:
        """From now on nothing comes through, in neither direction: neither data nor the news that a peer is gone."""
        if self._is_cut:
            return
        tc = ("tc", "-n", self._bridge_namespace)
        run(*tc, "qdisc", "add", "dev", self.port, "clsact")
        for direction in ("ingress", "egress"):
            drops = ("bpf", "direct-action", "bytecode", DROP_ALL)
            run(*tc, "filter", "add", "dev", self.port, direction, *drops)
        self._is_cut = True

    def cut_from(self, others: Iterable[Host]) -> None:
        """As `cut`, but only what goes to these hosts and comes from them is dropped."""
        if self._is_cut:
            return
        tc = ("tc", "-n", self._bridge_namespace)
        run(*tc, "qdisc", "add", "dev", self.port, "clsact")
        self._is_cut = True
        for number, other in enumerate(others, 1):
            for direction, place in (("ingress", IP_DESTINATION), ("egress", IP_SOURCE)):
                address = int.from_bytes(socket.inet_aton(other.address), "big")
                drops = ("bpf", "direct-action", "bytecode", DROP_ADDRESS.format(place, address))
                run(*tc, "filter", "add", "dev", self.port, direction, "prio", str(number), *drops)

    def restore(self) -> None:
        """Joins a host again that was cut off."""
        if self._is_cut:
            run("tc", "-n", self._bridge_namespace, "qdisc", "delete", "dev", self.port, "clsact")
            self._is_cut = False

    def traffic(self) -> Traffic:
        """Since the host was made, as the host's own interface counts it. What stays within a host is not in it."""
        (told,) = json.loads(run("ip", "-n", self.namespace, "-json", "-statistics", "link", "show", "dev", LINK))
        return Traffic(told["stats64"]["tx"]["bytes"], told["stats64"]["rx"]["bytes"])

    def _ends(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """What the host sends is queued at its interface, what it receives at the bridge's port."""
        return (self.namespace, self.interface), (self._bridge_namespace, self.port)

    # -- talking to others -----------------------------------------------------------------------------------------

    def reaches(self, other: Host, timeout_s: float = 1.0) -> bool:
        """Whether an answer comes back, if only that nobody listens."""
        return self.send(other, CLOSED_PORT, b"", timeout_s) != "lost"

    def send(self, other: Host, port: int, data: bytes, timeout_s: float = 5.0) -> str:
        """Sends bytes, which may be junk, to a port: "accepted", "refused" or "lost"."""
        command = self.command(sys.executable, "-I", "-S", str(PROBE), other.address, str(port), str(timeout_s))
        done = subprocess.run(command, input=data, capture_output=True, timeout=timeout_s * 3 + DEADLINE_S)
        if done.returncode != 0:
            raise NetworkError(f"{self} could not knock at port {port} of {other}: {done.stderr.decode()}")
        return done.stdout.decode().strip()

    def listening_ports(self) -> list[int]:
        """Where processes of this host accept connections over TCP."""
        told = run(*self.command("cat", "/proc/net/tcp", "/proc/net/tcp6"))
        rows = [line.split() for line in told.splitlines() if not line.lstrip().startswith("sl")]
        return sorted({int(row[1].rsplit(":", 1)[1], 16) for row in rows if row[3] == LISTENING})

    # -- its processes ---------------------------------------------------------------------------------------------

    def command(self, *command: str) -> list[str]:
        """The command that runs this one on this host. It becomes it: the process is the same."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def start(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> subprocess.Popen[Any]:
        """Starts a process, which ends with the host at the latest. Ctrl-C does not reach it, only the caller."""
        process = subprocess.Popen(
            self.command(*command),
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def pids(self) -> list[int]:
        """All processes on this host, whoever started them."""
        return pids_in(self.namespace)

    def kill(self) -> None:
        """Kills all processes of this host; returns when they are gone. The host itself stays, for new ones."""
        for process in self._started:  # also one that has not come as far as the namespace
            process.kill()
        end_processes(self.namespace)
        for process in self._started:
            process.wait(DEADLINE_S)


def stop(pid: int) -> None:
    """Stops a process (SIGSTOP); returns when it stands still."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + DEADLINE_S
    while state(pid) != "T":
        if time.monotonic() > deadline:
            raise NetworkError(f"process {pid} was not stopped: it is in state {state(pid)}")
        time.sleep(0.001)


def resume(pid: int) -> None:
    """Lets a stopped process go on."""
    os.kill(pid, signal.SIGCONT)


def state(pid: int) -> str:
    """The letter that the kernel gives it; "gone" for no process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
