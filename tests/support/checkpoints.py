"""What the ranks of the checkpoint tests do: scripts that save now and then, and go on from what is there."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import outpace
from tests.support import features, ranks
from tests.support.ranks import TIMEOUT_S, digest, my_rank, world


class KilledWhileWriting(dcp.FileSystemWriter):
    """Kills all ranks when this one's part of a checkpoint is written, and the whole is not."""

    def write_data(self, plan, planner):
        written = super().write_data(plan, planner)
        written.wait()
        folder = Path(self.path).parent
        for rank in range(world()):
            if rank != my_rank():
                os.kill(int((folder / f"{rank}.pid").read_text()), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
        return written


class Saving:
    """A folder of checkpoints, of which those that are complete have their final names."""

    def __init__(self, folder: str, state: outpace.TrainingState, is_async: bool, kill_at: int) -> None:
        dist.init_process_group("gloo")
        self.folder, self.state, self.is_async, self.kill_at = Path(folder), state, is_async, kill_at
        self.under_way: tuple[int, object] | None = None
        (self.folder / f"{my_rank()}.pid").write_text(str(os.getpid()))

    def load(self) -> None:
        complete = [int(path.name) for path in self.folder.iterdir() if path.name.isdigit()]
        if complete:
            planner = dcp.DefaultLoadPlanner(allow_partial_load=True)  # a rank that has no part in it is welcome
            dcp.load({"training": self.state}, checkpoint_id=self.folder / str(max(complete)), planner=planner)

    def save(self, step: int) -> None:
        self.complete()
        partial = self.folder / f"{step}.partial"
        what = {"training": self.state}
        if self.is_async:
            self.under_way = (step, dcp.async_save(what, checkpoint_id=partial))
            return
        kills = step == self.kill_at and my_rank() == world() - 1
        dcp.save(what, storage_writer=KilledWhileWriting(partial) if kills else dcp.FileSystemWriter(partial))
        self.name(step)

    def complete(self) -> None:
        if self.under_way is not None:
            step, future = self.under_way
            future.result()
            self.under_way = None
            self.name(step)

    def name(self, step: int) -> None:
        if my_rank() == 0:
            (self.folder / f"{step}.partial").rename(self.folder / str(step))

    def close(self) -> None:
        self.complete()
        while (self.folder / "doomed").exists():
            signal.pause()  # this life is not meant to come to its end
        dist.destroy_process_group()


def model_with_dropout() -> torch.nn.Module:
    torch.manual_seed(my_rank())
    random.seed(my_rank())
    return torch.nn.Sequential(
        torch.nn.Linear(12, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
    )


def train(folder: str, steps: int, every: int, is_async: bool = False, kill_at: int = 0) -> str:
    """Data, dropout and schedule all depend on where one goes on. Writes down what it has after every step.

    Returns the digest of what it began with.
    """
    model = model_with_dropout()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    opt = outpace.DistributedOptimizer(inner, strategy="allreduce", model=model, timeout_s=TIMEOUT_S)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    progress = {"step": 0}
    saving = Saving(folder, outpace.TrainingState(model, opt, scheduler=scheduler, at=progress), is_async, kill_at)
    saving.load()
    loaded = digest(opt)
    with Path(folder, f"{my_rank()}.steps").open("a", buffering=1) as seen:
        while progress["step"] < steps:
            x = torch.randn(8, 12) + random.random()
            opt.zero_grad()
            torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            opt.step()
            scheduler.step()
            progress["step"] += 1
            seen.write(f"{progress['step']} {digest(opt)} {opt.stats.version} {scheduler.get_last_lr()[0]!r}\n")
            if progress["step"] % every == 0:
                saving.save(progress["step"])
    saving.close()
    opt.finish()
    return loaded


def count(folder: str, strategy: str, steps: int, every: int) -> list[list[float]]:
    """Random delays; returns how often each contribution was applied, over all lives of the run."""
    counter = ranks.Counter(steps, strategy, ranks.Report(my_rank()))
    named = torch.nn.ParameterDict({"weight": counter.weight, "padding": counter.padding})
    progress = {"step": 0}
    saving = Saving(folder, outpace.TrainingState(named, counter.opt, at=progress), False, 0)
    saving.load()
    with Path(folder, f"{my_rank()}.steps").open("a", buffering=1) as seen:
        while progress["step"] < steps:
            time.sleep(random.random() * 0.004 * (1 + my_rank()))
            counter.step(progress["step"])
            progress["step"] += 1
            seen.write(f"{progress['step']}\n")
            if progress["step"] % every == 0:
                saving.save(progress["step"])
    saving.close()
    counter.opt.finish()
    return counter.counts()


def cut_without_a_meeting(folder: str) -> tuple[int, int]:
    """Rank 1 makes two rounds alone, rank 2 comes late and is carried, rank 0 has seen nothing yet. All save so."""
    counter = ranks.Counter(2, "eager:quorum=1,grace=0", ranks.Report(my_rank()))
    if my_rank() == 1:
        counter.step(0)
        counter.step(1)
    if my_rank() == 2:
        features.wait_for_version(counter.opt, 1)
        counter.step(0)
    torch.save({"weight": counter.weight.detach(), "optimizer": counter.opt.state_dict()}, f"{folder}/{my_rank()}")
    Path(folder, f"{my_rank()}.saved").touch()
    while not all(Path(folder, f"{rank}.saved").exists() for rank in range(world())):
        time.sleep(0.001)  # nobody may go on before all have saved
    state = counter.opt.state_dict()["outpace"]
    counter.opt.finish()
    return state["version"], len(state["pending"])


def go_on_from(folder: str, of_rank: int | None) -> list[list[float]]:
    """From each rank's own part, or all from one rank's. Returns how often each contribution was applied."""
    counter = ranks.Counter(2, "eager:quorum=1,grace=0", ranks.Report(my_rank()))
    saved = torch.load(f"{folder}/{my_rank() if of_rank is None else of_rank}", weights_only=True)
    with torch.no_grad():
        counter.weight.copy_(saved["weight"])
    counter.opt.load_state_dict(saved["optimizer"])
    counter.opt.finish()
    return counter.counts()
