"""One full-quorum round against Gloo's and Open MPI's allreduce, alternating within one run.

    python bench/collectives.py [--ranks 8] [--repeat 5] [--json]

round       contributions lie in the arena already; until every rank can read the averaged vector
end to end  from each rank's own gradients to the averaged vector, which the optimizer reads in place
Peers are measured end to end. Times are back-to-back means; shown are medians over the repeats, and all ratios are
between figures of this one run.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch
import torch.distributed as dist
from side_by_side import median_and_spread, open_bare, open_mpi_s, per_call_s

import outpace
from outpace.engines.base import run

SIZES = {"4 B": 1, "1 KB": 256, "64 KB": 16_384, "1 MB": 262_144, "4 MB": 1_048_576, "25 MB": 6_553_600}
WARM_UP = 12  # more than there are result slots, so that no page is touched for the first time while measuring
GOALS = {("25 MB", "round", "gloo"): 4.0, ("25 MB", "round", "open mpi"): 1.3, ("64 KB", "round", "gloo"): 20.0}


def measure(elements: int, times: int) -> dict[str, float]:
    """One repeat in this process: ours both ways, then Gloo's."""
    dist.init_process_group("gloo")
    found = {}
    for name, deposits in (("round", False), ("end to end", True)):
        engine, step = open_bare(elements, "allreduce", deposits)
        for _ in range(WARM_UP):
            step()
        dist.barrier()
        found[name] = per_call_s(step, times)
        run(engine.finish())
        engine.close()
    tensor = torch.ones(elements)
    for _ in range(3):
        dist.all_reduce(tensor)
    dist.barrier()
    found["gloo"] = per_call_s(lambda: dist.all_reduce(tensor), max(3, times // 4))
    dist.barrier()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sizes", default=",".join(SIZES), help="of " + ", ".join(SIZES))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    report = {}
    for size in args.sizes.split(","):
        elements = SIZES[size]
        times = max(20, min(200, 20_000_000 // max(1, elements)))
        samples: dict[str, list[float]] = {}
        for _ in range(args.repeat):
            reports = outpace.spawn(measure, args.ranks, (elements, times))
            for name in reports[0]:
                samples.setdefault(name, []).append(max(report[name] for report in reports))
            if (mpi := open_mpi_s(args.ranks, elements, times)) is not None:
                samples.setdefault("open mpi", []).append(mpi)
        report[size] = show(size, args.ranks, samples, args.json)
    if args.json:
        print(json.dumps({"ranks": args.ranks, "repeat": args.repeat, "sizes": report}, indent=2))


def show(size: str, ranks: int, samples: dict[str, list[float]], quiet: bool) -> dict[str, object]:
    medians = {name: statistics.median(values) for name, values in samples.items()}
    ratios = {
        f"{ours} against {peer}": medians[peer] / medians[ours]
        for ours in ("round", "end to end")
        for peer in ("gloo", "open mpi")
        if peer in medians
    }
    if not quiet:
        print(f"\n{ranks} ranks, {size}")
        for name, values in samples.items():
            print(f"  {name:11} {median_and_spread(values)}")
        for name, ratio in ratios.items():
            ours, peer = name.split(" against ")
            goal = GOALS.get((size, ours, peer)) if ranks == 8 else None
            verdict = "" if goal is None else f"   goal {goal}x: {'reached' if ratio >= goal else 'MISSED'}"
            print(f"  {name:26} {ratio:6.1f}x{verdict}")
        if "open mpi" not in medians:
            print("  Open MPI is not installed (Debian: openmpi-bin, and pip install mpi4py): skipped")
    return {"seconds": samples, "ratios": ratios}


if __name__ == "__main__":
    main()
