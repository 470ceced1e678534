"""The sections of the page, in its order. Adding one is adding a line here, a module and a template."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from bench.run import Run

SECTIONS: dict[str, str] = {
    "collectives": "a full-quorum round against Gloo, Open MPI and the memory's own speed",
    "anatomy": "where the time of a round goes",
    "skew": "the papers' micro-benchmark: 32 ranks, rank r late by r ms",
    "step_overhead": "what a balanced training step pays, beside DDP",
    "solo_step": "what eager-solo adds to a step of the fastest rank",
    "efficiency": "share of the ideal throughput, every strategy under every imbalance (simulated)",
    "grace": "stale contributions of balanced ranks, without and with grace",
    "stops": "what a stopped rank costs the others",
    "memory": "shared and private bytes of a rank, beside DDP",
    "touched": "shared memory while ranks are late, and afterwards",
    "first_rounds": "rounds that use memory for the first time",
    "frozen": "steps that train a small part of a large model",
    "reality": "simulated against real time",
    "simulator": "how fast the simulator is, and how it scales",
}


def measure_of(name: str) -> Callable[[Run], dict[str, Any]]:
    """What measures a section."""
    found: Callable[[Run], dict[str, Any]] = import_module(f"bench.{name}").measure
    return found
