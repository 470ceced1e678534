"""Rounds of fewer ranks, and rounds without the finite check, beside the usual one: real runs in the same processes.

A subset's ranks are scattered, so that their rows do not lie side by side. By the bytes alone a contributor to it costs
some more: the one vector that is written is shared by fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

import outpace
from bench.bare import BareRank, join_gloo, per_call_s
from bench.figures import mean, ratio, spread
from outpace.engines.sums import RowSums

RANKS, ABSENT = 8, (1, 4, 6)
BLOCKS = 3  #: of each variant in turn, within a repeat


def scale(quick: bool) -> tuple[int, int]:
    """(elements, rounds of a block)."""
    return (262_144, 10) if quick else (6_553_600, 10)


def once(elements: int, times: int) -> dict[str, float]:
    """Seconds of a round of each kind."""
    reports = outpace.spawn(_variants, RANKS, (elements, times))
    return mean([report for rank, report in enumerate(reports) if rank not in ABSENT])


def figures(found: dict[str, list[float]], quick: bool) -> dict[str, Any]:
    """Ratios between them."""
    present = RANKS - len(ABSENT)
    per_contributor = [s / present for s in found["subset"]], [s / RANKS for s in found["full"]]
    subset, check = ratio(*per_contributor), ratio(found["full"], found["unchecked"])
    return {
        "ranks": RANKS,
        "present": present,
        "mb": scale(quick)[0] * 4 / 2**20,
        "seconds": {name: spread(values) for name, values in found.items()},
        "subset_per_contributor": subset,
        "checked_against_unchecked": check,
    }


def _variants(elements: int, times: int) -> dict[str, float]:
    """In each rank: blocks of rounds of each kind in turn, and the fastest block of each."""
    join_gloo()
    full, subset = (BareRank(elements, "allreduce", deposits=False) for _ in range(2))
    is_absent = dist.get_rank() in ABSENT
    full.warm_up()
    if is_absent:
        subset.engine.leave()
    else:
        subset.warm_up()
    best: dict[str, float] = {}
    for _ in range(BLOCKS):
        for name, rank in (("full", full), ("subset", subset), ("unchecked", full)):
            dist.barrier()
            if name == "subset" and is_absent:
                best[name] = 0.0
                continue
            with _unchecked(name == "unchecked"):
                best[name] = min(best.get(name, float("inf")), per_call_s(rank.step, times))
    dist.barrier()
    return best


@contextmanager
def _unchecked(is_wanted: bool) -> Iterator[None]:
    """Within it, nobody looks whether a sum is finite."""
    usual = RowSums.sum_of_squares
    if is_wanted:
        RowSums.sum_of_squares = lambda self, summed, scale: 0.0  # type: ignore[method-assign]
    try:
        yield
    finally:
        RowSums.sum_of_squares = usual  # type: ignore[method-assign]
