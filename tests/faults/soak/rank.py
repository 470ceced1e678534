"""What each rank of the soak does: `outpace run -n 4 rank.py DIRECTORY STRATEGY PADDING`, until there is a file `stop`.

Its gradient is one at a place of its own in weights that all ranks share, and the sum of all is applied: so the weights
count how often each contribution was applied. Steps a hundred apart share a place.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from pathlib import Path

import torch

import outpace
from tests.faults.soak.diary import Diary

COMPUTE_S = 0.020  #: emulated
LIVES, PLACES = 96, 100
TIMEOUT_S = 40.0  #: a hang becomes an error


def process_began_s() -> float:
    """When this process was made, on the clock of `time.monotonic`."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic() - (since_boot - ticks / os.sysconf("SC_CLK_TCK"))


def checksum(tensors: list[torch.Tensor]) -> int:
    found = 0
    for tensor in tensors:
        found = zlib.crc32(tensor.detach().numpy(), found)
    return found


def train(directory: Path, strategy: str, padding: int) -> None:
    rank, life, world = (int(os.environ[name]) for name in ("RANK", "OUTPACE_LIFE", "WORLD_SIZE"))
    diary = Diary(directory, rank, life)
    diary.note("began", os.getpid(), process_began_s())
    weight = torch.nn.Parameter(torch.zeros(world, LIVES, PLACES))
    more = torch.nn.Parameter(torch.zeros(padding))

    def on_round(record) -> None:
        members = [] if record.void else [c[:3] for c in record.contributions]
        diary.note("round", record.number, members, checksum([weight, more]))

    groups = [{"params": [weight], "momentum": 0.0}, {"params": [more]}]  # with momentum, ranks look ahead
    inner = torch.optim.SGD(groups, lr=1.0, momentum=0.9)
    diary.note("ready")
    opt = outpace.DistributedOptimizer(inner, strategy, timeout_s=TIMEOUT_S, match_step_length=False, on_round=on_round)
    diary.note("joined", opt.stats.ranks[rank].incarnation)
    weight.grad, more.grad = torch.zeros_like(weight), torch.full_like(more, rank + 1.0)
    steps = 0
    while not (directory / "stop").exists():
        time.sleep(COMPUTE_S)
        weight.grad.zero_()
        weight.grad[rank, life - 1, steps % PLACES] = 1.0
        diary.note("step")
        opt.step()
        diary.note("stepped")
        steps += 1
    opt.finish()
    applied = [[*place, round(-float(weight.detach()[tuple(place)]))] for place in weight.detach().nonzero().tolist()]
    told = {
        "checksum": checksum([weight, more]),
        "applied": applied,
        "dropped": [r.dropped for r in opt.stats.ranks],
        "version": opt.stats.version,
    }
    diary.note("end", told)


if __name__ == "__main__":
    train(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
