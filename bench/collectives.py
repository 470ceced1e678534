"""A full-quorum round against Gloo's and Open MPI's allreduce and against the memory's own speed.

round       contributions lie in the arena already; until every rank can read the averaged vector
end to end  from each rank's own gradients to the averaged vector, which the optimizer reads in place
Peers are measured end to end. Times are means of back-to-back calls, of the slowest rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import outpace
from bench import open_mpi, round_variants
from bench.bare import BareRank, join_gloo, per_call_s
from bench.figures import Figure, Samples, ratio, slowest, spread
from bench.memory_limit import limit_s
from bench.run import Run

WORLDS = (2, 4, 8)
SIZES = {
    "4 B": 1,
    "1 KB": 256,
    "64 KB": 16_384,
    "1 MB": 262_144,
    "4 MB": 1_048_576,
    "25 MB": 6_553_600,
    "100 MB": 26_214_400,
}
QUICK_WORLDS, QUICK_SIZES = (2, 4), ("64 KB", "1 MB")
SMALL = ("4 B", "1 KB", "64 KB")  #: what a round costs beside moving bytes
LIMITED = ("1 MB", "4 MB", "25 MB", "100 MB")  #: below, the limit would show torch's calls and not the memory
MEASURES = ("round", "end to end")
PEERS = ("gloo", "open mpi", "limit")


def measure(run: Run) -> dict[str, Any]:
    """All sizes and worlds, repeat by repeat."""
    samples, variants = Samples(), Samples()
    worlds, sizes = (QUICK_WORLDS, QUICK_SIZES) if run.quick else (WORLDS, tuple(SIZES))
    with run.until_ctrl_c():
        for _ in run.repeats("collectives"):
            for ranks in worlds:
                for size in sizes:
                    run.say(f"collectives: {ranks} ranks, {size}")
                    samples.add((ranks, size), once(ranks, size))
            run.say("collectives: subsets and the finite check")
            variants.add("round", round_variants.once(*round_variants.scale(run.quick)))
    return {
        "has_open_mpi": open_mpi.is_installed(),
        "rows": [_row(ranks, size, found) for (ranks, size), found in samples.items()],
        "variants": [round_variants.figures(found, run.quick) for _, found in variants.items()],
    }


def once(ranks: int, size: str, with_open_mpi: bool = True) -> dict[str, float]:
    """Seconds of one call: ours both ways, then the peers, one after the other."""
    elements = SIZES[size]
    times = max(10, min(200, 125_000_000 // elements))
    found = slowest(outpace.spawn(_ours_and_gloo, ranks, (elements, times)))
    if with_open_mpi and open_mpi.is_installed():
        found["open mpi"] = open_mpi.allreduce_s(ranks, elements, times)
    if size in LIMITED:
        found["limit"] = limit_s(ranks, elements, times)
    return found


def _ours_and_gloo(elements: int, times: int) -> dict[str, float]:
    """In each rank."""
    join_gloo()
    found = {}
    for name in MEASURES:
        rank = BareRank(elements, "allreduce", deposits=name == "end to end")
        rank.warm_up()
        dist.barrier()
        found[name] = per_call_s(rank.step, times)
        rank.close()
    tensor = torch.ones(elements)
    for _ in range(3):
        dist.all_reduce(tensor)
    dist.barrier()
    found["gloo"] = per_call_s(lambda: dist.all_reduce(tensor), max(3, times // 4))
    dist.barrier()
    return found


def _row(ranks: int, size: str, found: dict[str, list[float]]) -> dict[str, Any]:
    ratios: dict[str, Figure] = {}
    for ours in MEASURES:
        for peer in PEERS:
            if peer in found:
                ratios[f"{ours} / {peer}"] = ratio(found[peer], found[ours])
    seconds = {name: spread(values) for name, values in found.items()}
    return {"ranks": ranks, "size": size, "seconds": seconds, "ratios": ratios}
