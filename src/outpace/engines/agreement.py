"""What all ranks must have in common before they train together. Owns the comparison and its error messages."""

from __future__ import annotations

import logging
from typing import Any

import torch

from outpace.errors import ModelMismatch
from outpace.protocol.rules import Rules
from outpace.replica.replica import OptimizerReplica
from outpace.vector import VectorLayout

log = logging.getLogger("outpace")

BUILD = "torch and processor"  #: may differ, and then bits may


def description_of(
    replica: OptimizerReplica, vector: VectorLayout, rules: Rules, max_grad_norm: float | None
) -> dict[str, Any]:
    """Plain values by which ranks compare model, optimizer and rules."""
    return {
        "parameters": vector.describe(),
        "others": [[name, list(p.shape), str(p.dtype)] for name, p in replica.named_others()],
        "buffers": replica.model_buffers.describe(),
        "buffer_rules": replica.model_buffers.rules,
        "optimizer": type(replica.inner).__name__,
        "groups": [len(group["params"]) for group in replica.inner.param_groups],
        "max_grad_norm": max_grad_norm,
        BUILD: [torch.__version__, torch.backends.cpu.get_cpu_capability()],
        **rules.to_dict(),
    }


def check_agreement(mine: dict[str, Any], theirs: dict[str, Any], rank: int) -> None:
    """Refuses a rank whose model, optimizer or rules differ, naming the first difference. Warns where bits may."""
    for part in ("parameters", "others", "buffers"):
        for index in range(max(len(mine[part]), len(theirs[part]))):
            here = mine[part][index] if index < len(mine[part]) else None
            there = theirs[part][index] if index < len(theirs[part]) else None
            if here != there:
                raise ModelMismatch(
                    f"rank {rank} has another model than rank 0: first difference is "
                    f"{_describe(here, there)}. Start all ranks from the same code"
                )
    for part in mine:
        if part != BUILD and mine[part] != theirs.get(part):
            raise ModelMismatch(
                f"rank {rank} runs with other settings than rank 0: {part} is {mine[part]!r} here, "
                f"{theirs.get(part)!r} there. Start all ranks from the same code"
            )
    if mine[BUILD] != theirs.get(BUILD):
        log.warning(
            "[rank %d] torch and processor are %s here, and %s where rank 0 is. outpace goes on, but replicas may come "
            "to differ in their last bits, more so with every round. Use one torch everywhere, and set "
            "ATEN_CPU_CAPABILITY to what all processors can do",
            *(rank, mine[BUILD], theirs.get(BUILD)),
        )


def _describe(here: list[Any] | None, there: list[Any] | None) -> str:
    if here is None or there is None:
        present, where = (here, "only here") if there is None else (there, "only there")
        assert present is not None
        return f"`{present[0]}` ({present[1]}, {present[2]}), {where}"
    if here[0] != there[0]:
        return f"`{here[0]}` here where `{there[0]}` is there"
    if here[1] != there[1]:
        return f"`{here[0]}`, {here[1]} here, {there[1]} there"
    return f"`{here[0]}`, {here[2]} here, {there[2]} there"
