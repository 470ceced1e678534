"""The limit of a round in shared memory: how fast this machine moves the bytes that must move.

Somebody must read all ranks' vectors and write one. Here all cores do that and nothing else at the same time, each its
share: one process for each core, on memory that they share as the ranks do.
"""

from __future__ import annotations

import mmap
import os
import time

import torch
import torch.distributed as dist

import outpace
from bench.bare import join_gloo, per_call_s

CACHE_LINE = 16  #: elements


def limit_s(ranks: int, elements: int, times: int) -> float:
    """Seconds to read so many vectors and write one, by all cores together."""
    cores = os.cpu_count() or 1
    memory = os.memfd_create("bench-limit")
    try:
        os.ftruncate(memory, (ranks + 1) * elements * 4)
        path = f"/proc/{os.getpid()}/fd/{memory}"
        return max(outpace.spawn(_share_s, cores, (path, ranks, elements, times), {"OMP_NUM_THREADS": "1"}))
    finally:
        os.close(memory)


def _share_s(path: str, ranks: int, elements: int, times: int) -> float:
    """This core's share of every vector."""
    join_gloo()
    core, cores = dist.get_rank(), dist.get_world_size()
    with open(path, "r+b", buffering=0) as file:
        shared = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.float32).view(ranks + 1, elements)
    bounds = [elements * part // cores // CACHE_LINE * CACHE_LINE for part in range(cores)] + [elements]
    *rows, result = shared[:, bounds[core] : bounds[core + 1]]

    def move() -> None:
        for row in rows:
            row.sum()
        result.fill_(1.0)

    if core == 0:
        shared.fill_(1.0)  # no page is touched for the first time while measuring
    dist.barrier()
    warm_until = time.monotonic() + 0.05
    while time.monotonic() < warm_until:
        move()
    dist.barrier()
    return per_call_s(move, times)
