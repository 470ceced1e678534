"""What the ranks of the recording tests do. Runs in processes of its own."""

from __future__ import annotations

import atexit
import os
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import outpace
from outpace.observe.recorder import file_of


def my_rank() -> int:
    return int(os.environ["RANK"])


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def compute(model: torch.nn.Module, slow_rank: int, delay_s: float) -> None:
    time.sleep(delay_s if my_rank() == slow_rank else 0.0)
    model(torch.ones(4, 12)).sum().backward()


def until_all_others_have_arrived(opt: outpace.DistributedOptimizer) -> None:
    """So that who is last does not depend on how busy the machine is."""
    engine = opt._engine
    engine.look()
    while len(engine.ledger.on_time) < engine.world - 1:
        time.sleep(0.001)
        engine.look()


def with_log_dir(
    directory: str, strategy: str, steps: int, slow_rank: int, delay_s: float
) -> outpace.observe.figures.Stats:
    """A loop with DistributedOptimizer that synchronises once."""
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    applied: list[int] = []
    with outpace.DistributedOptimizer(
        inner, strategy, model, timeout_s=60, log_dir=directory, on_round=lambda record: applied.append(record.number)
    ) as opt:
        for _ in range(steps):
            opt.zero_grad()
            compute(model, slow_rank, delay_s)
            if strategy == "allreduce" and my_rank() == slow_rank:
                until_all_others_have_arrived(opt)
            opt.step(samples=4)
        opt.synchronize()
    assert applied, "the user's own hook was not called"
    return opt.stats


def with_ddp(directory: str, steps: int, slow_rank: int, delay_s: float, record_first: bool, microbatches: int) -> int:
    """A loop with DDP and one more line. Returns how many threads and hooks the recording left behind."""
    torch.distributed.init_process_group("gloo")
    threads = threading.active_count()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recording = outpace.record(optimizer, directory) if record_first else None
    wrapped = DistributedDataParallel(model)
    recording = recording or outpace.record(optimizer, directory)
    for _ in range(steps):
        optimizer.zero_grad()
        for index in range(microbatches):
            with nullcontext() if index == microbatches - 1 else wrapped.no_sync():
                compute(wrapped, slow_rank, delay_s)
        optimizer.step()
    recording.close()
    hooks = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
    left = hooks + len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
    torch.distributed.barrier()  # the group ends with the process: destroyed while the model lives, Gloo may hang
    return left + threading.active_count() - threads


def never_closed(directory: str, steps: int) -> None:
    """A script that simply ends."""
    model = make_model()
    opt = outpace.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), "eager-solo", model, timeout_s=60, log_dir=directory
    )
    for _ in range(steps):
        opt.zero_grad()
        compute(model, -1, 0.0)
        opt.step()


def forks(directory: str) -> str:
    """A child steps and ends as a process does; the parent goes on. Returns the file as it was after the child."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with outpace.record(optimizer, directory):
        step(weight, optimizer)
        child = os.fork()
        if child == 0:
            for _ in range(3):
                step(weight, optimizer)
            atexit._run_exitfuncs()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        step(weight, optimizer)
    return file_of(directory, 0).read_text()


def step(weight: torch.nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()


def one_has_no_place(directory: str) -> str:
    """Rank 1 cannot write: it must say so before the others have begun with it."""
    if my_rank() == 1:
        file_of(directory, 1).mkdir()
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = outpace.DistributedOptimizer(
        torch.optim.SGD([weight], lr=0.1), "eager-solo", timeout_s=60, log_dir=Path(directory)
    )
    optimizer.finish()
    return "trained"


def with_losses(directory: str, steps: int) -> None:
    """A loop that gives its losses, and in which nobody goes ahead of anybody."""
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    with outpace.DistributedOptimizer(inner, "allreduce", model, timeout_s=60, log_dir=directory) as opt:
        for number in range(1, steps + 1):
            opt.zero_grad()
            compute(model, 0, 0.02)
            opt.step(samples=4, loss=torch.tensor(1 / number, dtype=torch.float64))
