"""Whether a long job takes more and more room: what its files, its store and its processes hold, as rounds go by.

    python -m bench.long_run --rounds 100000      two hosts of one rank, as processes of this machine; some minutes

The log, the inbox and the store's entries are what grows with rounds. Each host gives back what it has folded, and the
store's entries are deleted when all hosts have them. Each rank's line is JSON; the last one says the most of each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import outpace

HOSTS, PARAMETERS = 2, 100
SIZES = ("log_bytes", "inbox_bytes", "store_keys", "agent_bytes", "rank_bytes")
_BLOCK = 512  #: bytes, in which the kernel counts what a file holds


def train(rounds: int, every: int) -> dict[str, Any]:
    """A rank, alone on its host. What it returns is its sizes at intervals and how long a round took."""
    from outpace.job.environment import joined_store, whereami

    rank, store = whereami().rank, joined_store()
    weight = torch.nn.Parameter(torch.zeros(PARAMETERS))
    opt = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.01), "eager-majority", timeout_s=60)
    weight.grad = torch.ones_like(weight)
    found, began, shown = [], time.monotonic(), 0
    while opt.stats.version < rounds:
        opt.step()
        if opt.stats.version >= shown + every:
            shown = opt.stats.version
            sizes = {"rank": rank, "round": shown, **_sizes(store)}
            found.append(sizes)
            print(json.dumps(sizes), file=sys.stderr, flush=True)
    took_s, version = time.monotonic() - began, opt.stats.version
    opt.finish()
    return {"rank": rank, "rounds": version, "round_ms": 1e3 * took_s / version, "sizes": found}


def _sizes(store: Any) -> dict[str, int]:
    held = {name: max(map(_held, _files(name)), default=0) for name in ("log", "inbox")}
    return {
        **{f"{name}_bytes": held[name] for name in held},
        "store_keys": store.num_keys(),
        "agent_bytes": max(map(_resident, _agents()), default=0),
        "rank_bytes": _resident(os.getpid()),
    }


def _files(name: str) -> list[int]:
    """This process's descriptors of a file of the arena."""
    fds = map(int, os.listdir("/proc/self/fd"))
    return [fd for fd in fds if f"outpace-{name} " in f"{_link(fd)} "]


def _link(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # the one that listed them
        return ""


def _held(fd: int) -> int:
    return os.fstat(fd).st_blocks * _BLOCK


def _agents() -> list[int]:
    """Processes that this one has started, and those that they have."""
    found, looked = [], [os.getpid()]
    while looked:
        pid = looked.pop()
        for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
            looked += map(int, tasks.read_text().split())
        found.append(pid)
    return found[1:]


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # it has ended
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.long_run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=5_000, help="rounds between two looks (%(default)s)")
    given = parser.parse_args()
    ranks = outpace.spawn(train, HOSTS, (given.rounds, given.every), hosts=HOSTS)
    most = {name: max(sizes[name] for rank in ranks for sizes in rank["sizes"]) for name in SIZES}
    print(json.dumps({"rounds": ranks[0]["rounds"], "round_ms": ranks[0]["round_ms"], "most": most}))


if __name__ == "__main__":
    main()
