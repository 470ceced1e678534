"""What torch's store works for a question, measured on a real one: a process that serves, and processes that ask.

The server's processor time is taken, not the clock's: on a cluster those who ask run on other hosts, and here they
take turns on the same cores with it.
"""

from __future__ import annotations

import multiprocessing
import resource
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
ENTRY = "x" * 512  #: a few records and their seal
PATIENCE = timedelta(seconds=60)
WAIT_S = 120.0  #: for all processes to come to the same point


def measure(run: Run) -> dict[str, Any]:
    """Seconds of the server's processor time for each question."""
    clients, calls = (QUICK_CLIENTS, QUICK_CALLS) if run.quick else (CLIENTS, CALLS)
    samples = Samples()
    for _ in run.repeats("store", most=3):
        samples.add("all", _once(clients, calls))
    found = {name: spread(values) for name, values in samples.by_key["all"].items()}
    return {"clients": clients, "calls": calls, "entry_bytes": len(ENTRY), **found}


def _once(clients: int, calls: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    barrier = context.Barrier(clients + 1)
    answers = context.Queue()
    server = context.Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    port = ours.recv()
    asking = [
        context.Process(target=_ask, args=(who, port, calls, barrier, answers), daemon=True) for who in range(clients)
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
    alone_s = max(answers.get(timeout=WAIT_S) for _ in asking)
    ours.send("end")
    for process in (*asking, server):
        process.join(WAIT_S)
    each = calls * clients
    return {
        "set_s": used["won"] / each,
        "lost_s": used["lost"] / each,
        "alone_s": alone_s,
        "sets_per_s": each / took["won"],
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
    """One client, with a connection to write, as an agent has it."""

    def __init__(self, who: int, port: int, calls: int) -> None:
        self.who, self.calls = who, calls
        self._writer = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=PATIENCE)

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


PHASES: dict[str, Callable[[Agent], None]] = {
    "alone": Agent.alone,
    "won": Agent.won,
    "lost": Agent.lost,
}


def _ask(who: int, port: int, calls: int, barrier: Any, answers: Any) -> None:
    agent = Agent(who, port, calls)
    alone_s = 0.0
    for name, phase in PHASES.items():
        barrier.wait(WAIT_S)
        barrier.wait(WAIT_S)
        began = time.perf_counter()
        phase(agent)
        if name == "alone":
            alone_s = (time.perf_counter() - began) / calls
        barrier.wait(WAIT_S)
    answers.put(alone_s)
