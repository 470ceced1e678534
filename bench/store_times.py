"""What torch's store works for a question, measured on a real one: a process that serves, and processes that ask.

The server's processor time is taken, not the clock's: on a cluster those who ask run on other hosts, and here they
take turns on the same cores with it. `race` lets agents write the log at once, as they do at the end of a round, and
counts what they ask: that is what the simulation takes for granted.
"""

from __future__ import annotations

import multiprocessing
import resource
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from bench.figures import Samples, spread
from bench.run import Run

CLIENTS, QUICK_CLIENTS = 8, 2
CALLS, QUICK_CALLS = 1500, 30
BURSTS, QUICK_BURSTS = 60, 3
ENTRY = "x" * 512  #: a few records and their seal
PATIENCE = timedelta(seconds=60)
WAIT_S = 120.0  #: for all processes to come to the same point


def measure(run: Run) -> dict[str, Any]:
    """Seconds of the server's processor time for each question, and what agents ask when all write at once."""
    clients = QUICK_CLIENTS if run.quick else CLIENTS
    calls, bursts = (QUICK_CALLS, QUICK_BURSTS) if run.quick else (CALLS, BURSTS)
    samples = Samples()
    for repeat in run.repeats("store", most=3):
        samples.add("all", _once(clients, calls, bursts, f"{repeat}"))
    found = {name: spread(values) for name, values in samples.by_key["all"].items()}
    return {"clients": clients, "calls": calls, "bursts": bursts, "entry_bytes": len(ENTRY), **found}


def _once(clients: int, calls: int, bursts: int, name: str) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    barrier = context.Barrier(clients + 1)
    answers = context.Queue()
    server = context.Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    port = ours.recv()
    asking = [
        context.Process(target=_ask, args=(who, clients, port, calls, bursts, barrier, answers), daemon=True)
        for who in range(clients)
    ]
    for process in asking:
        process.start()
    used, took = {}, {}
    for phase in PHASES:
        barrier.wait(WAIT_S)
        before, began = _used_s(ours), time.perf_counter()
        barrier.wait(WAIT_S)
        barrier.wait(WAIT_S)
        took[phase], used[phase] = time.perf_counter() - began, _used_s(ours) - before
    counts = [answers.get(timeout=WAIT_S) for _ in asking]
    ours.send("end")
    for process in (*asking, server):
        process.join(WAIT_S)
    each = calls * clients
    set_s = used["won"] / each
    return {
        "set_s": set_s,
        "lost_s": used["lost"] / each,
        "get_s": (used["log"] - calls * set_s) / (calls * (clients - 1)),
        "alone_s": max(count["alone_s"] for count in counts),
        "sets_per_s": each / took["won"],
        "attempts": sum(count["sets"] for count in counts) / (bursts * clients),
        "reads": sum(count["gets"] for count in counts) / (bursts * clients),
        "entry_s": used["race"] / (bursts * clients),
    }


def _used_s(server: Connection) -> float:
    server.send("used")
    return float(server.recv())


def _serve(parent: Connection) -> None:
    """The store's process: its own threads do the work, this one only answers what they have used."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    parent.send(store.port)
    while parent.recv() == "used":
        usage = resource.getrusage(resource.RUSAGE_SELF)
        parent.send(usage.ru_utime + usage.ru_stime)


# -- those who ask -----------------------------------------------------------------------------------------------------


class Agent:
    """One client, with a connection to write and one to read, as an agent has them."""

    def __init__(self, who: int, clients: int, port: int, calls: int, bursts: int) -> None:
        self.who, self.clients, self.calls, self.bursts = who, clients, calls, bursts
        self.sets = self.gets = 0
        self._writer, self._reader = (
            TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=PATIENCE) for _ in range(2)
        )
        self._next, self._lock = 0, threading.Lock()

    def alone(self) -> None:
        """Only the first one asks: what a question takes when nobody else does."""
        if not self.who:
            for call in range(self.calls):
                self._writer.compare_set(f"alone/{call}", "", ENTRY)

    def won(self) -> None:
        """Each writes keys of its own."""
        for call in range(self.calls):
            self._writer.compare_set(f"{self.who}/{call}", "", ENTRY)

    def lost(self) -> None:
        """All ask for keys that are taken."""
        for call in range(self.calls):
            self._writer.compare_set(f"0/{call}", "", ENTRY)

    def log(self) -> None:
        """One writes, the others read every entry as it comes."""
        for call in range(self.calls):
            if self.who:
                self._read(f"log/{call}")
            else:
                self._writer.compare_set(f"log/{call}", "", ENTRY)

    def race(self) -> None:
        """Each has an entry to write at the same time, and reads all others; again and again."""
        reading = threading.Thread(target=self._read_on)
        reading.start()
        for burst in range(self.bursts):
            while self._next < burst * self.clients:  # the last burst is over for everybody
                time.sleep(0)
            self._write_one(f"{ENTRY[:-8]}{self.who:8}")
        reading.join()

    def _write_one(self, entry: str) -> None:
        while True:
            number = self._next
            self.sets += 1
            first = self._writer.compare_set(f"race/{number}", "", entry)
            self._take(number)
            if first.decode() == entry:
                return

    def _read_on(self) -> None:
        while self._next < self.bursts * self.clients:
            number = self._next
            self.gets += 1
            self._read(f"race/{number}")
            self._take(number)

    def _read(self, key: str) -> None:
        self._reader.wait([key], PATIENCE)
        self._reader.get(key)

    def _take(self, number: int) -> None:
        with self._lock:
            self._next = max(self._next, number + 1)


PHASES: dict[str, Callable[[Agent], None]] = {
    "alone": Agent.alone,
    "won": Agent.won,
    "lost": Agent.lost,
    "log": Agent.log,
    "race": Agent.race,
}


def _ask(who: int, clients: int, port: int, calls: int, bursts: int, barrier: Any, answers: Any) -> None:
    agent = Agent(who, clients, port, calls, bursts)
    alone_s = 0.0
    for name, phase in PHASES.items():
        barrier.wait(WAIT_S)
        barrier.wait(WAIT_S)
        began = time.perf_counter()
        phase(agent)
        if name == "alone":
            alone_s = (time.perf_counter() - began) / calls
        barrier.wait(WAIT_S)
    answers.put({"alone_s": alone_s, "sets": agent.sets, "gets": agent.gets})
