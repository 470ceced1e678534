"""What real agents ask of the store in a round, counted: hosts of one rank each, on this machine.

    python -m bench.store_ops                 2, 4, 8 and 16 hosts
    python -m bench.store_ops --hosts 4 --strategies wagma

Every call of a store in every agent counts as one, whatever it is for: the log, leases, joins. Counts are taken while
all ranks train, so that neither the start nor the end is in them.
"""

from __future__ import annotations

import argparse
import mmap
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import outpace

STRATEGIES = ("allreduce", "eager-majority", "wagma")
HOSTS = (2, 4, 8, 16)
CALLS = ("compare_set", "get", "wait", "check", "set", "multi_get", "add", "delete_key")
WARM_UP, STEPS, PARAMETERS = 10, 60, 1000
COMPUTE_MS = 5.0
_COUNT = struct.Struct("<Q")


class Counts:
    """How often each call was made in the agent of one host. In a file, because agents end without a word."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_COUNT.size * len(CALLS)))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 0)
        self._lock = threading.Lock()

    def add(self, call: str) -> None:
        place = CALLS.index(call) * _COUNT.size
        with self._lock:
            _COUNT.pack_into(self._shared, place, _COUNT.unpack_from(self._shared, place)[0] + 1)

    def all(self) -> Counter[str]:
        return Counter({call: _COUNT.unpack_from(self._shared, 8 * place)[0] for place, call in enumerate(CALLS)})


class CountingStore:
    """A store that counts what it is asked."""

    def __init__(self, inner: Any, counts: Counts) -> None:
        self._inner, self._counts = inner, counts

    def clone(self) -> CountingStore:
        return CountingStore(self._inner.clone(), self._counts)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in CALLS:
            return found

        def counted(*arguments: Any) -> Any:
            self._counts.add(name)
            return found(*arguments)

        return counted


def train(strategy: str, directory: str, compute_s: float) -> tuple[Counter[str], int, float]:
    """A rank, alone on its host: what its agent asked, in how many rounds, and how long a step took."""
    from outpace.engines.cluster import agent, supervisor
    from outpace.job.environment import joined_store, whereami

    rank = whereami().rank
    counts = Counts(Path(directory) / f"{rank}")
    agent.joined_store = lambda: CountingStore(joined_store(), counts)
    supervisor.fork_server.fork()  # from here, where stores count
    weight = torch.nn.Parameter(torch.zeros(PARAMETERS))
    opt = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.01), strategy, timeout_s=60)
    weight.grad = torch.ones_like(weight)
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            before, version, began = counts.all(), opt.stats.version, time.monotonic()
        time.sleep(compute_s)
        opt.step()
    asked, rounds = counts.all() - before, opt.stats.version - version
    took_s = (time.monotonic() - began) / STEPS
    opt.finish()
    return asked, rounds or STEPS, took_s


def count(strategy: str, hosts: int, compute_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        found = outpace.spawn(train, hosts, (strategy, directory, compute_s), hosts=hosts)
    rounds = max(rounds for _, rounds, _ in found)
    asked = sum((counts for counts, _, _ in found), Counter[str]())
    return {
        "strategy": strategy,
        "hosts": hosts,
        "ops": sum(asked.values()) / rounds / hosts,
        "calls": {call: number / rounds / hosts for call, number in asked.items()},
        "step_ms": 1e3 * sum(took for _, _, took in found) / hosts,
    }


def measure(hosts: Sequence[int] = HOSTS, compute_ms: float = COMPUTE_MS) -> list[dict[str, Any]]:
    """For each strategy, operations of the store for each host and round, by the number of hosts."""
    return [
        {"strategy": name, "counts": {str(n): round(count(name, n, compute_ms / 1e3)["ops"], 1) for n in hosts}}
        for name in STRATEGIES
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.store_ops", description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=HOSTS)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--compute-ms", type=float, default=COMPUTE_MS)
    given = parser.parse_args()
    for strategy in given.strategies:
        for hosts in given.hosts:
            row = count(strategy, hosts, given.compute_ms / 1e3)
            calls = "  ".join(f"{call} {number:.2f}" for call, number in row["calls"].items() if number >= 0.005)
            print(
                f"{strategy:15} {hosts:3} hosts  {row['ops']:6.2f} a host and round  {row['step_ms']:6.1f} ms  {calls}"
            )


if __name__ == "__main__":
    main()
