"""Whether strangers at the ports slow a job down: step time of two hosts before, while and after they knock.

    python -m bench.junk

A stranger is a process of its own. It sends random bytes and HTTP requests to the store's port and to the agents', over
and over, and holds 1,000 connections to each that say nothing. Compute is a sleep. Ratios within one run.
"""

from __future__ import annotations

import json
import os
import select
import socket
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

import outpace

RANKS, HOSTS, COMPUTE_S, STEPS, HELD = 4, 2, 0.020, 150, 1000
RANDOM, HTTP = os.urandom(4096), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LISTENING = "0A"


def main() -> None:
    """Prints a line for each part of the run, of the slowest rank."""
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")  # the store asks for the name of each who connects
    told = outpace.spawn(_train, RANKS, hosts=HOSTS)
    for part in ("before", "during", "after"):
        medians = [rank[part]["median_ms"] for rank in told]
        longest = max(rank[part]["longest_ms"] for rank in told)
        print(f"{part}: {max(medians):.1f} ms a step in the median of the slowest rank, longest {longest:.0f} ms")
    ratio = max(rank["during"]["median_ms"] / rank["before"]["median_ms"] for rank in told)
    print(
        f"during / before: {ratio:.3f}; {told[0]['knocks']} knocks, {HELD} connections held at each of "
        f"{told[0]['ports']} ports"
    )


def _train() -> dict:
    rank = int(os.environ["RANK"])
    weight = torch.nn.Parameter(torch.zeros(200_000))
    opt = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.01), "allreduce", timeout_s=120)
    weight.grad = torch.ones_like(weight)
    found: dict = {}
    stranger = None
    for part in ("before", "during", "after"):
        if rank == 0 and part == "during":
            ports = [int(os.environ["MASTER_PORT"]), *_agents_ports()]
            stranger = subprocess.Popen(
                [sys.executable, __file__, *map(str, ports)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            found["ports"] = len(ports)
            stranger.stdout.readline()  # it has begun
        opt.synchronize()
        found[part] = _timed(opt)
        if rank == 0 and part == "during":
            found["knocks"] = json.loads(stranger.communicate("")[0])
    opt.finish()
    return found


def _timed(opt: outpace.DistributedOptimizer) -> dict[str, float]:
    seconds = []
    for _ in range(STEPS):
        began = time.perf_counter()
        time.sleep(COMPUTE_S)
        opt.step()
        seconds.append(time.perf_counter() - began)
    return {"median_ms": 1e3 * statistics.median(seconds), "longest_ms": 1e3 * max(seconds)}


def _agents_ports() -> list[int]:
    """Of all agents of this job: processes that were started by its ranks, and listen."""
    ranks = {pid for pid in _pids() if _parent(pid) == _parent(os.getpid())}
    inodes = {inode for pid in _pids() if _parent(pid) in ranks for inode in _sockets(pid)}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].rsplit(":", 1)[1], 16) for row in rows if row[3] == LISTENING and f"socket:[{row[9]}]" in inodes]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return -1


def _sockets(pid: int) -> list[str]:
    found = []
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(os.readlink(entry))
    return found


# -- the stranger ------------------------------------------------------------------------------------------------------


def knock_until_told(ports: list[int]) -> None:
    """Until standard input is closed. Says so when all connections are held."""
    held = [_connection(port) for port in ports for _ in range(HELD)]
    print("begun", flush=True)
    knocks = 0
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        for port in ports:
            for data in (RANDOM, HTTP):
                with _connection(port) as stranger, suppress(OSError):
                    stranger.settimeout(0.01)
                    stranger.send(data)
                knocks += 1
    print(json.dumps(knocks), flush=True)
    del held


def _connection(port: int) -> socket.socket:
    stranger = socket.socket()
    stranger.setblocking(False)
    stranger.connect_ex(("127.0.0.1", port))
    return stranger


if __name__ == "__main__":
    if sys.argv[1:]:
        knock_until_told([int(port) for port in sys.argv[1:]])
    else:
        main()
