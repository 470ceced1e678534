"""Ranks of a job whose store and ports a stranger reaches. Runs in processes of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from torch.distributed import TCPStore

import outpace
from outpace.engines.cluster.sealing import seal
from outpace.engines.cluster.shared_page import SharedPage
from tests.support.host_faults import agents_of, parent_of
from tests.support.ranks import Counter, Report, digest, my_rank

TIMEOUT_S = 60.0  # on a busy machine an agent takes long to import torch
AFTER = 15  #: steps before the stranger comes
LISTENING, TCP_FILES = "0A", ("/proc/net/tcp", "/proc/net/tcp6")
FIRST_PLACES = [number.to_bytes(8, "little") for number in range(3)]  #: by which Gloo tells who connects
RANDOM, HTTP = os.urandom(4096), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


_held: list[socket.socket] = []


class Outcome(NamedTuple):
    """What became of one rank."""

    error: str  #: "" if it came to its end
    seconds: float  #: from what was done to the store until the end
    final: str
    counts: list[list[float]]
    extra: object = None
    agents: tuple[int, ...] = ()  #: at the end


def disturbed(strategy: str, steps: int, deed: str) -> Outcome:
    """Counts contributions while rank 0 also plays the stranger."""
    report = Report(my_rank())
    counter = Counter(steps, strategy, report, timeout_s=TIMEOUT_S)
    extra, came = None, time.monotonic()
    try:
        for step in range(steps):
            time.sleep(0.002)
            if step == AFTER and my_rank() == 0:
                came, extra = time.monotonic(), DEEDS[deed](counter)
            counter.step(step)
        agents = tuple(all_agents())
        counter.opt.finish()
    except outpace.OutpaceError as error:
        return Outcome(f"{type(error).__name__}: {error}", time.monotonic() - came, "", [])
    return Outcome("", time.monotonic() - came, digest(counter.opt), counter.counts(), extra, agents)


def stranger() -> TCPStore:
    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=timedelta(seconds=10))


def at(what: str) -> str:
    return f"outpace/0/0/cluster/{what}"


def next_entry(counter: Counter) -> int:
    return SharedPage(counter.opt._engine.memory.arena).progress.entries


# -- in the store ------------------------------------------------------------------------------------------------------


def forge_an_entry(counter: Counter) -> None:
    place = at(f"log/{next_entry(counter) + 20}")
    stranger().set(place, seal(b"another key", place, bytes(16 + 64)))


def replay_an_entry(counter: Counter) -> None:
    number, store = next_entry(counter), stranger()
    store.set(at(f"log/{number + 20}"), store.get(at(f"log/{number - 1}")))


def put_junk_for_an_entry(counter: Counter) -> None:
    stranger().set(at(f"log/{next_entry(counter) + 20}"), b"x")


def write_leases(counter: Counter) -> None:
    """Junk and an old one, in turn, for much less time than a host may be silent."""
    store = stranger()
    old = store.get(at("alive/1"))
    for turn in range(20):
        store.set(at("alive/1"), bytes(48) if turn % 2 else old)
        time.sleep(0.01)


def delete_entries(counter: Counter) -> None:
    """Those that are about to be read."""
    store, start, ends = stranger(), next_entry(counter), time.monotonic() + 1
    while time.monotonic() < ends:
        for number in range(start - 2, start + 8):
            store.delete_key(at(f"log/{number}"))


def meddle_where_nobody_looks_any_more(counter: Counter) -> None:
    """What was used at the start, what ended hosts say, and entries that everybody has."""
    store = stranger()
    start = ("where/0", "where/1", "description", "token", "host/0/arena", "host/1/arena", "host/1/member/1")
    for name in (*(f"outpace/0/0/{what}" for what in start), at("log/0"), at("log/1")):
        store.set(name, b"junk")
    store.add("outpace/0/0/taken", 7)


def look_for_the_key(counter: Counter) -> object:
    """(whether the token is in the store, processes of this machine whose command line has the key)."""
    desk = SharedPage(counter.opt._engine.memory.arena)
    found = [pid for pid in os.listdir("/proc") if pid.isdigit() and _shows(pid, desk.key)]
    return stranger().check(["outpace/0/0/token"]), found


def _shows(pid: str, key: bytes) -> bool:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return key in line or key.hex().encode() in line


# -- on the ports ------------------------------------------------------------------------------------------------------


def knock_everywhere(counter: Counter) -> object:
    """Junk, and a thousand connections that say nothing, at the store's port and the agents'.

    Returns how many ports there were, and the agents.
    """
    agents = all_agents()
    ports = {int(os.environ["MASTER_PORT"]), *(port for pid in agents for _, port in listening(pid))}
    _held.extend(knock(port, data) for port in ports for data in (RANDOM, HTTP, b"abc", *FIRST_PLACES))
    _held.extend(knock(port, b"") for port in ports for _ in range(1000))
    return len(ports), agents


def all_agents() -> list[int]:
    """Of this job, whose ranks have one parent."""
    mine = parent_of(os.getpid())
    ranks = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent_of(int(pid)) == mine]
    return agents_of(ranks)


def listening(pid: int) -> list[tuple[str, int]]:
    """(address as the kernel writes it, port) of every socket on which a process accepts connections."""
    mine = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for name in TCP_FILES for line in Path(name).read_text().splitlines()[1:]]
    found = [row[1].rsplit(":", 1) for row in rows if row[3] == LISTENING and f"socket:[{row[9]}]" in mine]
    return [(address, int(port, 16)) for address, port in found]


def knock(port: int, data: bytes) -> socket.socket:
    """A connection to a port, if it is accepted, with some bytes sent."""
    connection = socket.socket()
    connection.setblocking(False)
    connection.connect_ex(("127.0.0.1", port))
    with contextlib.suppress(OSError):  # it is not there, or not yet
        connection.send(data)
    return connection


DEEDS: dict[str, Callable[[Counter], object]] = {
    deed.__name__: deed
    for deed in (
        forge_an_entry,
        replay_an_entry,
        put_junk_for_an_entry,
        write_leases,
        delete_entries,
        meddle_where_nobody_looks_any_more,
        look_for_the_key,
        knock_everywhere,
    )
}
