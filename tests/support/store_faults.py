"""Ranks whose store is lost, or that wait for somebody at the start. Runs in processes of its own."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

import outpace
from outpace.engines.arena.open import Rendezvous
from outpace.engines.cluster import supervisor
from tests.support.ranks import my_rank

Told = tuple[str, str, float]  #: which error, its words, seconds until it came


def optimizer(timeout_s: float, strategy: str = "allreduce") -> tuple[torch.nn.Parameter, outpace.DistributedOptimizer]:
    weight = torch.nn.Parameter(torch.zeros(100))
    return weight, outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), strategy, timeout_s=timeout_s)


def lose_the_store(directory: str, holder: int, how: int, timeout_s: float) -> Told:
    """Trains until the store's holder gets a signal from rank 0, and tells what came of it."""
    weight, opt = optimizer(timeout_s)
    deed = Path(directory, "done")
    weight.grad = torch.ones_like(weight)
    try:
        for step in range(1_000_000):
            opt.step()
            if step == 10 and my_rank() == 0:
                deed.write_text(str(time.time()))
                os.kill(holder, how)
    except outpace.OutpaceError as error:
        return type(error).__name__, str(error), time.time() - float(deed.read_text())
    return "", "", 0.0


def begin(timeout_s: float) -> Told:
    """Only begins, and tells what came of it."""
    began = time.monotonic()
    try:
        opt = optimizer(timeout_s)[1]
        opt.finish()
    except (outpace.OutpaceError, torch.distributed.DistError) as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return "", "", 0.0


def begin_without_the_last(timeout_s: float, how: str) -> Told | None:
    """As `begin`; the last rank never does, or hangs later, or its host's agent is another program."""
    if my_rank() < int(os.environ["WORLD_SIZE"]) - 1:
        return begin(timeout_s)
    if how == "never":
        return None
    if how == "hangs":
        Rendezvous.enter = lambda *_: time.sleep(timeout_s + 5)  # type: ignore[method-assign]
        optimizer_or_nothing(timeout_s)
        return None
    sys.executable, supervisor.fork_server = how, supervisor.ForkServer()
    return begin(timeout_s)


def optimizer_or_nothing(timeout_s: float) -> None:
    try:
        optimizer(timeout_s)
    except Exception:
        return


def stop_holder_and_begin(holder: int, timeout_s: float) -> Told:
    os.kill(holder, signal.SIGSTOP)
    return begin(timeout_s)
