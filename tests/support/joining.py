"""Ranks that join, or may not. Runs in processes of its own."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import torch

import outpace
from outpace.engines.arena.log import RECORD_BYTES
from outpace.engines.cluster import supervisor
from outpace.engines.cluster.sealing import seal
from outpace.engines.cluster.shared_page import SharedPage
from outpace.engines.cluster.store_log import MOST_RECORDS
from tests.support.ranks import digest, my_rank
from tests.support.store_faults import optimizer
from tests.support.strangers import at, stranger

TIMEOUT_S = 60.0  # on a busy machine an agent takes long to import torch
FIRST_ENTRY = at("log/0")


def train() -> str:
    """Some steps; what the weights are then."""
    weight, opt = optimizer(TIMEOUT_S)
    for _ in range(10):
        weight.grad = torch.full_like(weight, 1.0 + my_rank())
        opt.step()
    opt.finish()
    return digest(opt)


def train_without_pickles() -> str:
    """The agents see to it themselves: they come from new interpreters, which find the same directory."""
    supervisor.fork_server = supervisor.ForkServer()
    runpy.run_path(str(Path(__file__).with_name("no_pickles") / "sitecustomize.py"))["refuse"]()
    return train()


def begin(timeout_s: float = TIMEOUT_S) -> str:
    """Why it could not begin, "" if it could."""
    try:
        optimizer(timeout_s)[1].finish()
    except outpace.OutpaceError as error:
        return str(error)
    return ""


def record() -> bytes:
    """Trains; what the agent of the first host would have written at once, had it written all of the log so far."""
    weight, opt = optimizer(TIMEOUT_S)
    for _ in range(3):
        weight.grad = torch.ones_like(weight)
        opt.step()
    engine = opt._engine
    records = os.pread(engine.memory.files.log, MOST_RECORDS * RECORD_BYTES, 0)
    sealed = seal(SharedPage(engine.memory.arena).key, FIRST_ENTRY, records, bytes(32))
    opt.finish()
    return sealed


def begin_after(entry: bytes) -> str:
    """Begins where somebody has written that entry into the store before."""
    if my_rank() == 0:
        stranger().set(FIRST_ENTRY, entry)
    return begin()


def begin_with_own_token() -> str:
    os.environ["OUTPACE_TOKEN"] = f"token of rank {my_rank()}"
    return begin(4.0)


def begin_with_certificates_on_the_first_host(certificates: dict[str, str]) -> str:
    os.environ.update(certificates if my_rank() == 0 else {})
    return begin()
