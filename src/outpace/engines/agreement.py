"""What ranks check of each other: that they train the same model by the same rules, and that all wait where one does.

A rank that waits for all in `synchronize()` may be the only one that does. A slower rank still has steps to make that
the waiting one has made; one that goes far beyond it does not know of the meeting: it was called on some ranks only,
and the ranks train one after the other.
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

BUILD = "torch and processor"  #: may differ, and then bits may


def description_of(
    replica: OptimizerReplica, vector: VectorLayout, rules: Rules, max_grad_norm: float | None
) -> dict[str, Any]:
    """Plain values by which ranks compare model, optimizer and rules."""
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
    """Refuses a rank whose model, optimizer or rules differ, naming the first difference. Warns where bits may."""
    for part in ("parameters", "others", "buffers"):
        for here, there in zip_longest(mine[part], theirs[part]):
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
        name, shape, dtype = here or there or []
        return f"`{name}` ({shape}, {dtype}), only {'here' if there is None else 'there'}"
    if here[0] != there[0]:
        return f"`{here[0]}` here where `{there[0]}` is there"
    what = 1 if here[1] != there[1] else 2  # the shape, or the dtype
    return f"`{here[0]}`, {here[what]} here, {there[what]} there"


PATIENCE_S = 10.0  #: a wait this long is worth a word
FAR, AT_LEAST = 2, 10  #: times as many steps as the waiting rank has made since all last met, and so many more


class LonelyWait:
    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._met_at: dict[int, int] = {}  # steps of each rank when all last met
        self._since: float | None = None  # when this wait began; None once it was warned of

    def begin(self, now_s: float) -> None:
        self._since = now_s

    def look(self, ledger: Ledger, now_s: float) -> None:
        """Warns, once in a wait, if others go on stepping as if nobody waited for them."""
        if self._since is None or now_s - self._since < PATIENCE_S:
            return
        own = self._made(ledger, self._rank)
        active = [member.rank for member in ledger.members.unfinished() if member.state == ACTIVE]
        far = {rank: made for rank in active if (made := self._made(ledger, rank)) >= FAR * own + AT_LEAST}
        if far:
            log.warning(
                "[rank %d - round %d] has waited %.0f s in synchronize() for ranks %s, which keep stepping: %d steps "
                "since all ranks last met, %d here. Until they call it, too, or finish, this rank trains nothing. Call "
                "synchronize() on all ranks, not under `if rank == 0:`",
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
