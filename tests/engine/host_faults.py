"""What the ranks of the tests of faults between hosts do. Runs in processes of its own."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from ranks import Counter, Report, digest, my_rank

TIMEOUT_S = 20.0  # a host may be silent for 2 s


def count_with_a_host_in_trouble(
    strategy: str, steps: int, directory: str, trouble: str, after: int, padding: int = 0
) -> Report:
    """Counts contributions while rank 0 does something to the last host. Reports its longest steps as `extra`."""
    rank = my_rank()
    report = Report(rank)
    counter = Counter(steps, strategy, report, padding, timeout_s=TIMEOUT_S)
    note(directory, f"rank {rank}", os.getpid())
    slowest: list[tuple[float, float]] = []
    began = time.monotonic()
    for step in range(steps):
        time.sleep(0.002)
        if rank == 0 and step == after:
            cause(trouble, directory, counter)
            note(directory, "trouble", int(1e6 * time.monotonic()))
        at = time.monotonic()
        counter.step(step)
        slowest.append((time.monotonic() - at, at - began))
    counter.opt.finish()
    report.final, report.stats = digest(counter.opt), counter.opt.stats
    report.extra = sorted(slowest, reverse=True)[:3]
    return report


def cause(trouble: str, directory: str, counter: Counter) -> None:
    """Stops or kills the last host's agent, or all of that host."""
    ledger = counter.opt._engine.ledger
    host = ledger.hosts.count - 1
    ranks = [int(Path(directory, f"rank {rank}").read_text()) for rank in ledger.hosts.ranks(host)]
    agents = agents_of(ranks)
    if trouble == "kill agent":
        os.kill(agents[0], signal.SIGKILL)
    elif trouble == "kill agents":
        for pid in agents:
            os.kill(pid, signal.SIGKILL)
    elif trouble.startswith("stop agent"):
        stop_for(float(trouble.split()[-1]), agents)
    elif trouble.startswith("stop host"):
        stop_for(float(trouble.split()[-1]), ranks + agents)
    elif trouble == "kill host":
        for pid in agents + ranks:
            os.kill(pid, signal.SIGKILL)
    elif trouble != "none":
        raise ValueError(trouble)


def stop_for(seconds: float, pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    threading.Timer(seconds, lambda: [os.kill(pid, signal.SIGCONT) for pid in pids]).start()


def agents_of(ranks: list[int]) -> list[int]:
    """The agent of these ranks' host, and the one that would follow it: children of one of them, and grandchildren."""
    parents = {int(pid): parent_of(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()}
    agents = [pid for pid, parent in parents.items() if parent in ranks and is_agent(pid)]
    return agents + [pid for pid, parent in parents.items() if parent in agents]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def is_agent(pid: int) -> bool:
    try:
        return b"outpace.engines.cluster" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def note(directory: str, name: str, number: int) -> None:
    Path(directory, name).write_text(str(number))
