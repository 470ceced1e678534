"""What the ranks of the tests of torch's other parts do: scalers, autocast, compilers, clipping, loaders."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import outpace
from tests.support import features, ranks
from tests.support.ranks import TIMEOUT_S, digest, my_rank, world
from tests.support.worker_rows import Rows


def be_uneven() -> None:
    """The last rank computes for much longer than the others."""
    time.sleep(0.008 if my_rank() == world() - 1 else 0.001)


def be_passed_over(opt: outpace.DistributedOptimizer) -> None:
    """The last rank waits with its first contribution until a round was made without it."""
    while my_rank() == world() - 1 and opt.stats.round == 0:
        time.sleep(0.001)
        opt._engine.look()


# -- gradient scalers ----------------------------------------------------------------------------------------------


def count_scaled(strategy: str, steps: int, overflows: dict[int, list[int]]) -> ranks.Report:
    """Counts what is applied; at some steps of some ranks the scaled gradient overflows. Reports the last scale."""
    report = ranks.Report(my_rank())
    counter = ranks.Counter(steps, strategy, report)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7)
    for step in range(steps):
        be_uneven()
        counter.opt.zero_grad()
        loss = counter.weight[my_rank(), step]
        if step in overflows.get(my_rank(), []):
            loss = loss * math.inf
        scaler.scale(loss).backward()
        if step % 2:  # as those do who clip; else `step` unscales
            scaler.unscale_(counter.opt)
            torch.nn.utils.clip_grad_norm_([counter.weight], 10.0)
        scaler.step(counter.opt)
        scaler.update()
    counter.opt.finish()
    report.final, report.stats, report.counts = digest(counter.opt), counter.opt.stats, counter.counts()
    report.extra = scaler.get_scale()
    return report


def without_one_step(is_scaled: bool, steps: int, rank: int, at: int) -> ranks.Report:
    """One rank's gradient overflows at one step; or, without a scaler, it sits that step out."""
    report, made = ranks.Report(my_rank()), []
    model = ranks.small_model(my_rank())
    opt = features.plain(model, "allreduce", on_round=ranks.recorder(report, made))
    made.append(opt)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5, enabled=is_scaled)
    for step, x in enumerate(features.batches(steps, my_rank())):
        overflows = my_rank() == rank and step == at
        if overflows and not is_scaled:
            continue
        opt.zero_grad()
        scaler.scale(features.loss_of(model, x) * (math.inf if overflows else 1.0)).backward()
        scaler.step(opt)
        scaler.update()
    opt.finish()
    report.final, report.stats, report.extra = digest(opt), opt.stats, scaler.get_scale()
    return report


# -- what a model is computed with ---------------------------------------------------------------------------------


class Blocks(torch.nn.Module):
    """Two blocks, whose activations may be computed again in the backward pass."""

    def __init__(self, recompute: dict[str, bool] | None) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh())
        self.second = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1))
        self.last = torch.nn.Linear(16, 1)
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = self.second(x) if self.recompute is None else checkpoint(self.second, x, **self.recompute)
        return self.last(x)


def model_of(kind: str) -> torch.nn.Module:
    torch.manual_seed(my_rank())
    recompute = {"recomputed": {"use_reentrant": False}, "recomputed-reentrant": {"use_reentrant": True}}
    model = Blocks(recompute.get(kind))
    if kind == "bfloat16":
        model.bfloat16()
    return torch.compile(model, backend="aot_eager") if kind == "compiled" else model


def train_with(kind: str, strategy: str, steps: int) -> ranks.Report:
    """An ordinary loop under skew. Reports the mean loss of the first and of the last quarter of this rank's steps."""
    report, made = ranks.Report(my_rank()), []
    model = model_of(kind)
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    opt = outpace.DistributedOptimizer(
        inner, strategy=strategy, model=model, timeout_s=TIMEOUT_S, on_round=ranks.recorder(report, made)
    )
    made.append(opt)
    losses = []
    if strategy != "allreduce":
        be_passed_over(opt)
    for x in features.batches(steps, my_rank()):
        be_uneven()
        opt.zero_grad()
        x = x.bfloat16() if kind == "bfloat16" else x
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
            loss = features.loss_of(model, x)
        loss.backward()
        opt.step()
        losses.append(float(loss))
    opt.finish()
    quarter = steps // 4
    report.extra = (sum(losses[:quarter]), sum(losses[-quarter:]))
    report.final, report.stats = digest(opt), opt.stats
    return report


def same_with_and_without(kinds: list[str], steps: int) -> list[str]:
    """What each kind ends with at full quorum."""
    return [train_with(kind, "allreduce", steps).final for kind in kinds]


# -- clipping ------------------------------------------------------------------------------------------------------


def count_clipped(strategy: str, steps: int) -> list[list[float]]:
    """Gradients far above 1 that each rank clips to 1 before it contributes them."""
    counter = ranks.Counter(steps, strategy, ranks.Report(my_rank()))
    for step in range(steps):
        be_uneven()
        counter.opt.zero_grad()
        (counter.weight[my_rank(), step] * 100.0 * (1 + my_rank())).backward()
        torch.nn.utils.clip_grad_norm_([counter.weight], 1.0)
        counter.opt.step()
    counter.opt.finish()
    return counter.counts()


def clipped_rounds(strategy: str, steps: int, limit: float) -> tuple[dict[int, float], str]:
    """How far each round moved the weights, with plain SGD and a learning rate of 1."""
    weight, moved = torch.nn.Parameter(torch.zeros(64)), {}
    before = [(-1, weight.detach().clone())]

    def on_round(record) -> None:
        number, then = before[0]
        if record.number == number + 1:  # else this rank has adopted a snapshot, which is further away
            moved[record.number] = float((weight.detach() - then).norm())
        before[0] = (record.number, weight.detach().clone())

    inner = torch.optim.SGD([weight], lr=1.0)
    opt = outpace.DistributedOptimizer(
        inner, strategy=strategy, max_grad_norm=limit, on_round=on_round, timeout_s=TIMEOUT_S
    )
    torch.manual_seed(my_rank())
    for _ in range(steps):
        be_uneven()
        weight.grad = torch.randn(64)
        opt.step()
    opt.finish()
    return moved, digest(opt)


# -- data loaders --------------------------------------------------------------------------------------------------


def load_with_workers(start_method: str, folder: str, steps: int, victim: int) -> tuple[int, str]:
    """The victim is killed while its loader's workers live: they are stopped, so that they cannot end before that.

    Returns the steps made, and what is known of the victim.
    """
    model = ranks.small_model(my_rank())
    opt = features.plain(model, "eager:quorum=full,min_ranks=1")
    loader = DataLoader(Rows(8 * steps), batch_size=8, num_workers=2, multiprocessing_context=start_method)
    for step, x in enumerate(loader):
        if step == 0:
            workers = [str(child.pid) for child in multiprocessing.active_children()]
            Path(folder, f"{my_rank()}.workers").write_text(" ".join(workers))
        if step == steps // 2 and my_rank() == victim:
            die_before(list(map(int, workers)))
        opt.zero_grad()
        features.loss_of(model, x).backward()
        opt.step()
    state = next((r.state for r in opt.stats.ranks if r.rank == victim), "")
    opt.finish()
    return opt.stats.steps, state


def die_before(workers: list[int]) -> None:
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    while not all(map(ranks.lost, workers)):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)
