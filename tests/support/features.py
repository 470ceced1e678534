"""What the ranks of the feature tests do from beginning to end, and what they train. Runs in processes of its own."""

from __future__ import annotations

import gc
import os
import random
import time
from pathlib import Path

import torch

import outpace
from tests.support import ranks
from tests.support.ranks import TIMEOUT_S, digest, my_rank, world


def plain(model: torch.nn.Module, strategy: str = "allreduce", **options) -> outpace.DistributedOptimizer:
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return outpace.DistributedOptimizer(inner, strategy=strategy, model=model, timeout_s=TIMEOUT_S, **options)


def batches(steps: int, rank: int):
    generator = torch.Generator().manual_seed(1000 + rank)
    return [torch.randn(8, 12, generator=generator) for _ in range(steps)]


def loss_of(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))


def uneven(strategy: str, counts: list[int]) -> tuple[str, int, int]:
    """Ranks with different numbers of batches. Returns the digest, the rounds and the late contributions."""
    model = ranks.small_model(my_rank())
    with plain(model, strategy) as opt:
        for x in batches(counts[my_rank()], my_rank()):
            opt.zero_grad()
            loss_of(model, x).backward()
            opt.step()
    stats = opt.stats
    return digest(opt), stats.version, sum(r.on_time + r.carried + r.dropped for r in stats.ranks)


def checkpointed(first: int, second: int, path: str) -> str:
    """Trains `first` steps and saves, or loads and trains on, or both in one go without a checkpoint."""
    model = ranks.small_model(my_rank())
    opt = plain(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 40)
    data = batches(40, my_rank())
    if first == 0 and path:
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        data = data[20:]
        assert opt.stats.version == 20
        assert opt.stats.steps == 20
    for x in data[: first + second]:
        opt.zero_grad()
        loss_of(model, x).backward()
        opt.step()
        scheduler.step()
    opt.synchronize()
    if path and first and my_rank() == 0:
        saved = {"model": model.state_dict(), "optimizer": opt.state_dict(), "scheduler": scheduler.state_dict()}
        torch.save(saved, path)
    opt.finish()
    return digest(opt)


def pending_survives(path: str, load: bool) -> tuple[list[list[float]], int]:
    """Rank 1's late contribution is still pending when the checkpoint is made; it must not be lost."""
    report = ranks.Report(my_rank())
    counter = ranks.Counter(8, "eager:quorum=2,grace=0", report)
    mine = f"{path}.{my_rank()}"
    if load:
        saved = torch.load(mine, weights_only=True)
        with torch.no_grad():
            counter.weight.copy_(saved["weight"])
        counter.opt.load_state_dict(saved["optimizer"])
        counter.opt.finish()
        return counter.counts(), len(saved["optimizer"]["outpace"]["pending"])
    if my_rank() == 2:
        wait_for_version(counter.opt, 1)  # rounds 0 and 1 go ahead without this rank
        counter.step(0)  # late: carried, and nobody comes to take it in
    else:
        counter.step(0)
        counter.step(1)
    state = counter.opt.state_dict()
    torch.save({"weight": counter.weight.detach(), "optimizer": state}, mine)
    Path(f"{mine}.saved").touch()
    while not all(Path(f"{path}.{rank}.saved").exists() for rank in range(world())):
        time.sleep(0.001)  # nobody may flush before all have saved
    counter.opt.finish()
    return counter.counts(), len(state["outpace"]["pending"])


def wait_for_version(opt: outpace.DistributedOptimizer, version: int) -> None:
    """Until the others have completed round `version`, looking at the ledger as any rank may."""
    engine = opt._engine
    while engine.ledger.round <= version or engine.ledger.reducing is not None:
        engine.look()
        time.sleep(0.001)


def two_optimizers(steps: int) -> tuple[str, str]:
    """A generator and a discriminator, each with its own optimizer."""
    first, second = ranks.small_model(my_rank()), ranks.small_model(my_rank() + 50)
    a, b = plain(first), plain(second, "eager-majority")
    for x in batches(steps, my_rank()):
        for model, opt in ((first, a), (second, b)):
            opt.zero_grad()
            loss_of(model, x).backward()
            opt.step()
    a.finish()
    b.finish()
    return digest(a), digest(b)


def cpu_while_waiting(seconds: float) -> float:
    """CPU seconds that rank 0 uses while it waits for rank 1."""
    weight = torch.nn.Parameter(torch.zeros(1))
    opt = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), "allreduce", timeout_s=TIMEOUT_S)
    weight.grad = torch.ones(1)
    opt.step()  # what torch does once, at the first step, is not waiting
    if my_rank() == 1:
        time.sleep(seconds)
    before = time.process_time()
    opt.step()
    used = time.process_time() - before
    opt.finish()
    return used


def leftovers() -> tuple[set[str], set[str]]:
    """Open and mapped files before and after a whole run in this process, without the garbage collector."""

    def files() -> set[str]:
        found = set()
        for fd in os.listdir("/proc/self/fd"):
            try:
                found.add(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                continue
        mapped = Path("/proc/self/maps").read_text().splitlines()
        return {name.strip() for name in (*found, *(line[73:] for line in mapped)) if "memfd:outpace" in name}

    gc.disable()
    opt = plain(ranks.small_model(0))
    during = files()
    opt.finish()
    after = files()
    gc.enable()
    return during, after


def never_finishes(steps: int, strategy: str) -> int:
    """A script that simply ends, without `finish()`, after different numbers of steps."""
    model = ranks.small_model(my_rank())
    opt = plain(model, strategy)
    for x in batches(steps * (1 + my_rank()), my_rank()):
        opt.zero_grad()
        loss_of(model, x).backward()
        opt.step()
    return opt.stats.version


def raises_at(step: int, rank: int, strategy: str) -> None:
    """One rank's loop raises."""
    model = ranks.small_model(my_rank())
    with plain(model, strategy) as opt:
        for index in range(50):
            if index == step and my_rank() == rank:
                raise KeyError("the user's own mistake")
            opt.zero_grad()
            loss_of(model, torch.randn(8, 12)).backward()
            opt.step()


def loader_workers(steps: int, rank_to_kill: int) -> tuple[int, str]:
    """A rank dies while processes it forked live on: it must still be seen as dead."""
    model = ranks.small_model(my_rank())
    opt = plain(model, "eager:quorum=full,min_ranks=1")
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    for index in range(steps):
        if index == 5 and my_rank() == rank_to_kill:
            Path(os.environ["CHILD_FILE"]).write_text(str(child))
            os.kill(os.getpid(), 9)
        opt.zero_grad()
        loss_of(model, torch.randn(8, 12)).backward()
        opt.step()
    os.kill(child, 9)
    os.waitpid(child, 0)
    state = next(r.state for r in opt.stats.ranks if r.rank == rank_to_kill)
    opt.finish()
    return opt.stats.steps, state


def random_sleeps(steps: int, strategy: str) -> str:
    """Used with file-backed arenas."""
    model = ranks.small_model(my_rank())
    opt = plain(model, strategy)
    delays = random.Random(my_rank())
    for x in batches(steps, my_rank()):
        time.sleep(delays.random() * 0.003)
        opt.zero_grad()
        loss_of(model, x).backward()
        opt.step()
    opt.finish()
    return digest(opt)


def leaves_with_buffers() -> list[float]:
    """Rank 1's script simply ends; its buffers count all the same."""
    model = torch.nn.BatchNorm1d(2)
    opt = plain(model)
    model.running_mean.fill_(1.0)
    if my_rank() == 0:
        opt.finish()
    return model.running_mean.tolist()


def lost_snapshot_writers(steps: int) -> ranks.Report:
    """The last rank falls behind all results that are kept, and no rank writes a snapshot when it is its turn, as if
    each had been lost just then. The others have nothing left to do but to wait for it."""
    report = ranks.Report(my_rank())
    counter = ranks.Counter(steps, "eager:quorum=solo,max_staleness=1,grace=0", report)
    counter.opt._engine.replay._is_mine_to_write = lambda record: False
    is_last = my_rank() == world() - 1
    if is_last:
        wait_for_version(counter.opt, steps - 1)
    for step in range(1 if is_last else steps):
        counter.step(step)
    counter.opt.finish()
    report.final = digest(counter.opt)
    return report


def rolled_back(path: str) -> float:
    """Weights loaded in a running job stay what was loaded, also on a rank that is behind."""
    weight = torch.nn.Parameter(torch.zeros(1))
    inner = torch.optim.SGD([weight], lr=1.0)
    opt = outpace.DistributedOptimizer(inner, "eager-solo", timeout_s=TIMEOUT_S)
    state = opt.state_dict()
    if my_rank() == 1:
        for _ in range(3):
            weight.grad = torch.ones(1)
            opt.step()
        Path(path).touch()
    while not Path(path).exists():
        time.sleep(0.001)
    with torch.no_grad():
        weight.fill_(100.0)
    opt.load_state_dict(state)
    opt.finish()
    return float(weight.detach())
