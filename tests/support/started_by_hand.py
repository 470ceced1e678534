"""Ranks that no launcher of ours or torch's has started: `python started_by_hand.py SCENARIO DIRECTORY ...`."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import outpace
from outpace.job import environment
from outpace.protocol.members import FINISHED
from tests.support.ranks import TIMEOUT_S, digest, lost, small_model

WORLD = 3


def wrap(trained: torch.nn.Module, **options: Any) -> outpace.DistributedOptimizer:
    inner = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9)
    return outpace.DistributedOptimizer(inner, "allreduce", timeout_s=TIMEOUT_S, **options)


def train(steps: int = 5, at_end: Callable[[Any], None] = lambda _: None) -> dict[str, Any]:
    """Each rank begins with weights of its own."""
    model = small_model(environment.whereami().rank)
    opt = wrap(model, model=model)
    for _ in range(steps):
        backward(model)
        opt.step()
    at_end(opt._engine)
    opt.finish()
    stats = opt.stats
    return {
        "rank": stats.rank,
        "engine": type(opt._engine.log).__name__,
        "hosts": list(opt._engine.rules.hosts),
        "final": digest(opt),
        "contributors": [rank.rank for rank in stats.ranks if rank.on_time == steps],
    }


def backward(model: torch.nn.Module) -> None:
    model.zero_grad()
    model(torch.randn(8, 12)).pow(2).mean().backward()


def leave(directory: str, report: dict[str, Any]) -> None:
    Path(directory, f"{report['rank']}.json").write_text(json.dumps(report))


def error_of(call: Callable[[], object]) -> str | None:
    try:
        call()
    except outpace.OutpaceError as error:
        return str(error)
    return None


# -- mistakes, each made by all ranks alike ----------------------------------------------------------------------------


def parameters_of_ddp() -> None:
    wrap(DistributedDataParallel(small_model(0)))


def ddp_as_model() -> None:
    ddp = DistributedDataParallel(small_model(0))
    wrap(ddp, model=ddp)


def wrapped_after_construction() -> None:
    model = small_model(0)
    with wrap(model, model=model) as opt:
        wrapped = DistributedDataParallel(model)
        backward(wrapped)
        opt.step()


def ddp_that_was_let_go() -> None:
    ddp = DistributedDataParallel(small_model(0))
    model = ddp.module
    ddp.itself = [ddp]  # only the garbage collector can see that nobody has it
    del ddp
    gc.disable()
    with wrap(model, model=model) as opt:
        backward(model)
        opt.step()
    gc.enable()


def init(rank: int, init_method: str) -> None:
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=WORLD)


def spawned_rank(rank: int, directory: str, init_method: str) -> None:
    early = wrap(small_model(rank))
    init(rank, init_method)
    report = {
        "made before init": error_of(early.step),
        **train(),
        "ddp as model": error_of(ddp_as_model),
        "parameters of ddp": error_of(parameters_of_ddp),
        "wrapped after construction": error_of(wrapped_after_construction),
        "ddp that was let go": error_of(ddp_that_was_let_go),
    }
    leave(directory, report)
    dist.destroy_process_group()


def spawned(directory: str, init_method: str) -> None:
    """As in many programs: torch's own launcher, and no variable that says who is who."""
    start(spawned_rank, directory, init_method)


def rank_on_a_machine(rank: int, directory: str, init_method: str) -> None:
    environment.machine = lambda: f"machine-{rank % 2}"  # type: ignore[assignment]
    init(rank, init_method)
    Path(directory, f"{rank}.pid").write_text(str(os.getpid()))

    def at_end(engine: Any) -> None:
        if rank == 1:
            put_agent_to_sleep(engine, directory)
        while rank == 0 and not Path(directory, "asleep").exists():
            time.sleep(0.01)

    leave(directory, train(at_end=at_end))
    dist.destroy_process_group()


def put_agent_to_sleep(engine: Any, directory: str) -> None:
    """When rank 1 has finished, until rank 0, who holds the store and finishes then, is gone or waits for it."""

    def sleep() -> None:
        while engine.ledger.members.by_rank[1].state != FINISHED:
            time.sleep(0.01)
        agent, first = engine.log.life.holder(WORLD), int(Path(directory, "0.pid").read_text())
        os.kill(agent, signal.SIGSTOP)
        Path(directory, "asleep").touch()
        woken_at = time.monotonic() + 2.0
        while not lost(first) and time.monotonic() < woken_at:
            time.sleep(0.01)
        os.kill(agent, signal.SIGCONT)

    threading.Thread(target=sleep, daemon=True).start()


def on_two_machines(directory: str, init_method: str) -> None:
    """Ranks 0 and 2 share one."""
    start(rank_on_a_machine, directory, init_method)


def start(fn: Callable[..., None], *arguments: str) -> None:
    """What mp.spawn does, without importing torch once more in each rank."""
    mp.start_processes(fn, arguments, WORLD, start_method="fork")


def alone(directory: str) -> None:
    leave(directory, train())


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](*sys.argv[2:])
