"""Mistakes a user may make in one rank or in all. Runs in processes of its own."""

from __future__ import annotations

import os

import torch

import outpace
from tests.support.features import batches, loss_of, plain
from tests.support.ranks import TIMEOUT_S, my_rank, small_model


def another_model(kind: str) -> None:
    """Rank 1 brings something else than the others."""
    odd = my_rank() == 1
    width = 17 if odd and kind == "shape" else 16
    model = torch.nn.Sequential(torch.nn.Linear(12, width), torch.nn.Linear(width, 1))
    if odd and kind == "dtype":
        model = model.bfloat16()
    if odd and kind == "layers":
        model.append(torch.nn.Linear(1, 1))
    if kind == "optimizer" and odd:
        outpace.DistributedOptimizer(torch.optim.Adam(model.parameters()), "allreduce", model, timeout_s=TIMEOUT_S)
    plain(model, "eager-solo" if odd and kind == "strategy" else "allreduce")


def too_large() -> None:
    """A parameter that only claims to be large: nothing is allocated for it."""
    weight = torch.nn.Parameter(torch.zeros(1).expand(10**11))
    outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), "eager-solo", timeout_s=TIMEOUT_S)


def full_directory() -> None:
    """Named files in a file system that is too small."""
    weight = torch.nn.Parameter(torch.zeros(10**6))
    outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), "eager-solo", timeout_s=TIMEOUT_S)


def sparse_gradient() -> tuple[str, int]:
    """A sparse gradient is refused, and training can go on without it."""
    table = torch.nn.Embedding(10, 4, sparse=True)
    opt = plain(table, "allreduce")
    table(torch.tensor([1, 2])).sum().backward()
    message = ""
    try:
        opt.step()
    except outpace.OutpaceError as error:
        message = str(error)
    table.weight.grad = torch.ones_like(table.weight)
    opt.step()
    opt.finish()
    return message, opt.stats.version


def after_finish() -> list[str]:
    """Every call after `finish()`; `finish()` itself may be called again."""
    model = small_model(0)
    opt = plain(model)
    opt.finish()
    opt.finish()
    found = []
    for call in (opt.step, opt.synchronize, lambda: opt.load_state_dict({})):
        try:
            call()
        except outpace.OutpaceError as error:
            found.append(str(error))
    return found


def parameters_added() -> list[str]:
    """Through the wrapper and behind its back."""
    model = small_model(0)
    opt = plain(model)
    found = []
    extra = torch.nn.Parameter(torch.ones(1))
    for add in (lambda: opt.add_param_group({"params": [extra]}), lambda: _behind(opt, extra)):
        try:
            add()
        except outpace.OutpaceError as error:
            found.append(str(error))
    return found


def _behind(opt: outpace.DistributedOptimizer, extra: torch.nn.Parameter) -> None:
    opt.inner.add_param_group({"params": [extra]})
    opt.step()


def missing_rank() -> None:
    """Rank 1 never makes its optimizer."""
    if my_rank() == 0:
        model = small_model(0)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        outpace.DistributedOptimizer(inner, "eager-solo", timeout_s=1.0)


def waits_for_nothing() -> None:
    """Rank 1 never steps, and full quorum waits for it until the bound."""
    model = small_model(0)
    opt = outpace.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), "allreduce", timeout_s=1.0)
    if my_rank() == 1:
        os.read(os.pipe()[0], 1)  # for ever, until the caller ends this process
    loss_of(model, batches(1, 0)[0]).backward()
    opt.step()
