"""What training takes of memory: shared by all ranks, and of each rank's own; beside torch's DDP.

Private bytes are those of all mappings but the arena: the kernel calls a shared page private, too, as long as only one
process has looked at it. Measured after some steps, with the gradients alive, against one process that trains alone
with the same optimizer.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

import outpace
from bench.bare import join_gloo
from bench.run import Run
from bench.step_overhead import Dots

RANKS, PARAMETERS, STEPS = 8, 25_000_000, 24
QUICK_RANKS, QUICK_PARAMETERS = 2, 1_000_000
MOMENTUM, STATE_VECTORS = 0.9, 1
STRATEGIES = ("allreduce", "eager-solo:grace=0")  #: nobody is late; everybody but one
ARENA = "/memfd:outpace-arena"


def measure(run: Run) -> dict[str, Any]:
    """Bytes, once: they hardly vary."""
    ranks, parameters = (QUICK_RANKS, QUICK_PARAMETERS) if run.quick else (RANKS, PARAMETERS)
    vector = parameters * 4
    reports: dict[str, list[dict[str, int]]] = {}
    with run.until_ctrl_c():
        for name in ("plain", "ddp", *STRATEGIES):
            run.say(f"memory: {name}")
            count = 1 if name == "plain" else ranks
            reports[name] = outpace.spawn(_trained, count, (name, parameters), {"OMP_NUM_THREADS": "1"})
    rows = [_row(name, found, reports["plain"], vector) for name, found in reports.items()]
    return {"ranks": ranks, "parameters": parameters, "vector_bytes": vector, "rows": rows}


def _row(name: str, reports: list[dict[str, int]], plain: list[dict[str, int]], vector: int) -> dict[str, Any]:
    private = max(report["private"] for report in reports)
    beyond = (private - plain[0]["private"]) / vector
    row = {"system": name, "private_bytes": private, "private_beyond_plain": beyond}
    if "touched" in reports[0]:
        touched, formula = max(report["touched"] for report in reports), reports[0]["formula"]
        row |= {"touched_bytes": touched, "formula_bytes": formula, "touched_share": touched / formula}
    return row


def _trained(name: str, parameters: int) -> dict[str, int]:
    """In each rank."""
    model: torch.nn.Module = Dots(parameters)
    optimizer: Optimizer = SGD(model.parameters(), lr=1e-6, momentum=MOMENTUM)
    if name == "ddp":
        join_gloo()
        model = DistributedDataParallel(model)
    elif name != "plain":
        optimizer = outpace.DistributedOptimizer(optimizer, name, model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
    found = {"private": private_bytes()}
    if isinstance(optimizer, outpace.DistributedOptimizer):
        found |= _of_arena(optimizer)
        optimizer.finish()
    return found


def _of_arena(optimizer: outpace.DistributedOptimizer) -> dict[str, int]:
    engine = optimizer._engine
    formula = engine.memory.arena.layout.usual_bytes(engine.rules.max_staleness, STATE_VECTORS)  # type: ignore[attr-defined]
    return {"formula": formula, "touched": os.fstat(engine.memory.files.arena).st_blocks * 512}  # type: ignore[attr-defined]


def private_bytes() -> int:
    """Of all mappings of this process but the arena."""
    total, is_arena = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_arena = ARENA in line
        elif line.startswith("Private_") and not is_arena and "Hugetlb" not in line:
            total += int(line.split()[1]) * 1024
    return total
