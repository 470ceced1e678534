"""What ranks check about each other: that they train the same model by the same rules, and synchronise together.

A rank that waits in `synchronize()` may be the only one to call it. A slower rank still has to make the steps that the
waiting one has made. One that goes far beyond those will not come: the call was made on some ranks only.
"""

from __future__ import annotations

import logging
from itertools import zip_longest
from typing import Any

import torch

from outpace.errors import ModelMismatch
from outpace.protocol.ledger import Ledger
from outpace.protocol.members import ACTIVE
from outpace.protocol.rules import Rules
from outpace.replica.replica import OptimizerReplica
from outpace.vector import VectorLayout

log = logging.getLogger("outpace")

BUILD = "torch and processor"  #: may differ; the replicas' last bits may then differ, too


def description_of(
    replica: OptimizerReplica, vector: VectorLayout, rules: Rules, max_grad_norm: float | None
) -> dict[str, Any]:
    """Plain values, for ranks to compare model, optimizer and rules."""
    return {
        "parameters": vector.describe(),
        "others": [[name, list(p.shape), str(p.dtype)] for name, p in replica.others.items()],
        "buffers": replica.model_buffers.describe(),
        "buffer_rules": replica.model_buffers.rules,
        "optimizer": type(replica.inner).__name__,
        "groups": [len(group["params"]) for group in replica.inner.param_groups],
        "max_grad_norm": max_grad_norm,
        BUILD: [torch.__version__, torch.backends.cpu.get_cpu_capability()],
        **rules.to_dict(),
    }


def check_agreement(mine: dict[str, Any], theirs: dict[str, Any], rank: int) -> None:
    """Refuses a rank whose model, optimizer or rules differ, naming the first difference. Warns if results may differ
    in their last bits."""
    for part in ("parameters", "others", "buffers"):
        for here, there in zip_longest(mine[part], theirs[part]):
            if here != there:
                raise ModelMismatch(
                    f"rank {rank} has a different model from rank 0's: the first difference is "
                    f"{_describe(here, there)}. Start all ranks from the same code"
                )
    for part in mine:
        if part != BUILD and mine[part] != theirs.get(part):
            raise ModelMismatch(
                f"rank {rank} runs with different settings from rank 0's: {part} is {mine[part]!r} here, "
                f"{theirs.get(part)!r} there. Start all ranks from the same code"
            )
    if mine[BUILD] != theirs.get(BUILD):
        log.warning(
            "[rank %d] torch and processor are %s here, but %s on rank 0. Training goes on, but replicas may drift "
            "apart in their last bits. Use one torch version everywhere, and set ATEN_CPU_CAPABILITY to what all "
            "processors support",
            *(rank, mine[BUILD], theirs.get(BUILD)),
        )


def _describe(here: list[Any] | None, there: list[Any] | None) -> str:
    if here is None or there is None:
        name, shape, dtype = here or there or []
        return f"`{name}` ({shape}, {dtype}), only {'here' if there is None else 'there'}"
    if here[0] != there[0]:
        return f"`{here[0]}` here, `{there[0]}` there"
    what = 1 if here[1] != there[1] else 2  # the shape, or the dtype
    return f"`{here[0]}`, {here[what]} here, {there[what]} there"


PATIENCE_S = 10.0  #: a shorter wait is not worth a warning
FAR, AT_LEAST = 2, 10  #: a rank with this many times the waiting rank's steps, and this many more, will not come


class LoneWait:
    """Notices when this rank waits in `synchronize()` and others never call it. Steps count from the last one."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._met_at: dict[int, int] = {}  # steps of each rank at the last synchronisation
        self._since: float | None = None  # when this wait began; None once it was warned about

    def begin(self, now_s: float) -> None:
        self._since = now_s

    def look(self, ledger: Ledger, now_s: float) -> None:
        """Warns, once per wait, if others keep stepping as if nobody waited for them."""
        if self._since is None or now_s - self._since < PATIENCE_S:
            return
        own = self._made(ledger, self._rank)
        active = [member.rank for member in ledger.members.unfinished() if member.state == ACTIVE]
        far = {rank: made for rank in active if (made := self._made(ledger, rank)) >= FAR * own + AT_LEAST}
        if far:
            log.warning(
                "[rank %d - round %d] has waited %.0f s in synchronize() for ranks %s, which keep stepping: %d steps "
                "since the last synchronisation, %d here. Until they call it, too, or finish, this rank trains "
                "nothing. Call synchronize() on all ranks, not under `if rank == 0:`",
                *(self._rank, ledger.round, now_s - self._since, sorted(far), max(far.values()), own),
            )
            self._since = None

    def all_have_met(self, ledger: Ledger) -> None:
        self._met_at = {rank: _steps(ledger, rank) for rank in range(ledger.rules.world)}

    def _made(self, ledger: Ledger, rank: int) -> int:
        return _steps(ledger, rank) - self._met_at.get(rank, 0)


def _steps(ledger: Ledger, rank: int) -> int:
    member, shelf = ledger.members.by_rank.get(rank), ledger.published.shelves.get(rank)
    return max(0, 0 if member is None else member.last_step, 0 if shelf is None else shelf.iteration)
