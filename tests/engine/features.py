"""What the ranks of the feature tests do. Runs in processes of its own."""

from __future__ import annotations

import gc
import json
import math
import os
import random
import time
from pathlib import Path

import ranks
import torch
from ranks import TIMEOUT_S, digest, my_rank, world
from torch.nn.parallel import DistributedDataParallel

import outpace


def plain(model: torch.nn.Module, strategy: str = "allreduce", **options) -> outpace.DistributedOptimizer:
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return outpace.DistributedOptimizer(inner, strategy=strategy, model=model, timeout_s=TIMEOUT_S, **options)


def batches(steps: int, rank: int):
    generator = torch.Generator().manual_seed(1000 + rank)
    return [torch.randn(8, 12, generator=generator) for _ in range(steps)]


def loss_of(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def against_ddp(steps: int) -> tuple[float, float]:
    """The largest difference between our weights and DDP's, and how far they moved from the same start."""
    torch.distributed.init_process_group("gloo")
    ours, theirs = ranks.small_model(0), ranks.small_model(0)
    opt = plain(ours)
    ddp = DistributedDataParallel(theirs)
    reference = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for x in batches(steps, my_rank()):
        opt.zero_grad()
        loss_of(ours, x).backward()
        opt.step()
        reference.zero_grad()
        loss_of(ddp, x).backward()
        reference.step()
    opt.finish()
    torch.distributed.barrier()  # the group ends with the process: destroyed while the model lives, Gloo may hang
    moved = (flat(ours) - flat(ranks.small_model(0))).abs().max()
    return float((flat(ours) - flat(theirs)).abs().max()), float(moved)


def alone_against_plain(steps: int) -> bool:
    """A world of one takes the very steps of the plain optimizer."""
    ours, theirs = ranks.small_model(0), ranks.small_model(0)
    opt, reference = plain(ours), torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9)
    for x in batches(steps, 0):
        for model, optimizer in ((ours, opt), (theirs, reference)):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
    opt.finish()
    return torch.equal(flat(ours), flat(theirs))


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


def refused_whole() -> tuple[float, list[float]]:
    """Every rank's last gradient is refused, and no learning rate comes with the round."""
    weight = torch.nn.Parameter(torch.zeros(2))
    with outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.0), "allreduce:max_staleness=1") as opt:
        for lr in range(1, 8):
            opt.param_groups[0]["lr"] = float(lr)
            weight.grad = torch.full((2,), math.nan if lr == 7 else 1.0)
            opt.step()
        used = json.loads(opt._replica.hyper)[0]["lr"]
    return used, weight.tolist()


def wait_for_version(opt: outpace.DistributedOptimizer, version: int) -> None:
    """Until the others have completed round `version`, looking at the ledger as any rank may."""
    engine = opt._engine
    while engine.ledger.round <= version or engine.ledger.reducing is not None:
        engine._watch.refresh()
        time.sleep(0.001)


def half(dtype_name: str, value: float, steps: int) -> tuple[float, str]:
    """Sums of half types accumulate in float32: many small terms beside a large one are not lost."""
    weight = torch.nn.Parameter(torch.zeros(100, dtype=getattr(torch, dtype_name)))
    opt = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), "allreduce", timeout_s=TIMEOUT_S)
    for _ in range(steps):
        weight.grad = torch.full_like(weight, value if my_rank() == 0 else 1.0)
        opt.step()
    opt.finish()
    return float(weight[0]), str(weight.dtype)


def mixed_dtypes() -> list[float]:
    """Parameters of three dtypes in one optimizer."""
    kinds = (torch.float32, torch.bfloat16, torch.float64)
    weights = [torch.nn.Parameter(torch.zeros(70_000 + i, dtype=kind)) for i, kind in enumerate(kinds)]
    opt = outpace.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0), "allreduce", timeout_s=TIMEOUT_S)
    for weight in weights:
        weight.grad = torch.full_like(weight, my_rank() + 1.0)
    opt.step()
    opt.finish()
    return [float(w.detach().double().mean()) for w in weights]


def poisoned(value: float, strategy: str, steps: int) -> tuple[list[float], object]:
    """Rank 1 contributes something that is not finite in step 2."""
    weight = torch.nn.Parameter(torch.zeros(4))
    opt = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), strategy, timeout_s=TIMEOUT_S)
    for step in range(steps):
        weight.grad = torch.ones(4)
        if step == 2 and (my_rank() == 1 or value == 1e38):
            weight.grad[3] = value * (3 if value == 1e38 else 1)
        opt.step()
    opt.finish()
    return weight.tolist(), opt.stats


def batchnorm(steps: int) -> tuple[list[float], list[float], int, str]:
    """Buffers: the rank's own before `synchronize()`, the averaged ones after it."""
    torch.manual_seed(my_rank())
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    opt = plain(model)
    for _ in range(steps):
        opt.zero_grad()
        model(torch.randn(16, 3) + my_rank()).sum().backward()
        opt.step()
    before = model[0].running_mean.tolist()
    opt.synchronize()
    after = model[0].running_mean.tolist()
    tracked = int(model[0].num_batches_tracked)
    opt.finish()
    return before, after, tracked, digest(opt)


def clipped(limit: float) -> tuple[list[float], list[float]]:
    """Weights after one clipped step, and what torch's own clipping of the mean gives."""
    weight = torch.nn.Parameter(torch.zeros(3))
    opt = outpace.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0), "allreduce", max_grad_norm=limit, timeout_s=TIMEOUT_S
    )
    gradients = [torch.tensor([3.0, 4.0, float(rank)]) for rank in range(world())]
    weight.grad = gradients[my_rank()].clone()
    opt.step()
    untouched = weight.grad.tolist() == gradients[my_rank()].tolist()
    opt.finish()
    reference = torch.nn.Parameter(torch.zeros(3))
    reference.grad = torch.stack(gradients).mean(0)
    torch.nn.utils.clip_grad_norm_([reference], limit)
    assert untouched, "the user's own gradient was changed"
    return weight.tolist(), (-reference.grad).tolist()


def by_samples() -> float:
    """Rank r averages over r + 1 samples of value r: the weighted mean counts every sample once."""
    weight = torch.nn.Parameter(torch.zeros(1))
    opt = outpace.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0), "eager:quorum=full,normalise=samples", timeout_s=TIMEOUT_S
    )
    weight.grad = torch.full((1,), float(my_rank()))
    opt.step(samples=my_rank() + 1)
    opt.finish()
    return -float(weight)


def microbatched() -> tuple[float, float]:
    """`rounds` with micro-batches gives the mean gradient, and counts samples."""
    weight = torch.nn.Parameter(torch.zeros(1))
    opt = outpace.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0), "eager:quorum=full,normalise=samples", timeout_s=TIMEOUT_S
    )
    loader = [torch.full((2, 1), float(i)) for i in range(4)]
    samples = 0.0
    for round_ in opt.rounds(loader, microbatches=2):
        for x in round_:
            (weight * x).mean().backward()
        opt.step()
        samples += round_.samples
    opt.finish()
    return -float(weight), samples


def unused_parameter() -> tuple[float, float]:
    """A parameter nobody has a gradient for keeps its weight: no decay, no momentum."""
    used, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    opt = outpace.DistributedOptimizer(
        torch.optim.SGD([used, unused], lr=0.1, weight_decay=0.5), "allreduce", timeout_s=TIMEOUT_S
    )
    used.grad = torch.zeros(2)
    opt.step()
    opt.finish()
    return float(used[0]), float(unused[0])


def schedule_of_the_furthest(steps: int) -> list[list[float]]:
    """The learning rates rounds were applied with. Rank 1 is slow and its schedule is far behind."""
    weight = torch.nn.Parameter(torch.zeros(1))
    rates: list[float] = []
    inner = torch.optim.SGD([weight], lr=1.0)
    plain_step = inner.step
    inner.step = lambda: (rates.append(inner.param_groups[0]["lr"]), plain_step())  # type: ignore[method-assign]
    opt = outpace.DistributedOptimizer(inner, "eager-solo", timeout_s=TIMEOUT_S)
    scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1.0 / (1 + step))
    for step in range(steps if my_rank() == 0 else 5):
        time.sleep(0 if my_rank() == 0 else 0.01)
        weight.grad = torch.ones(1)
        opt.step()
        scheduler.step()
        assert opt.param_groups[0]["lr"] == 1.0 / (2 + step), "the rank's own schedule was disturbed"
    opt.finish()
    return rates


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
    """Open files before and after a whole run in this process."""

    def files() -> set[str]:
        found = set()
        for fd in os.listdir("/proc/self/fd"):
            try:
                found.add(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                continue
        return {name for name in found if "outpace" in name}

    opt = plain(ranks.small_model(0))
    during = files()
    opt.finish()
    del opt
    gc.collect()
    return during, files()


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


def many_names(steps: int) -> str:
    """torch keeps the names of named parameters in the group: they are no hyper-parameters, and long."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(150)))
    inner = torch.optim.SGD(model.named_parameters(), lr=0.01)
    opt = outpace.DistributedOptimizer(inner, "eager-solo", timeout_s=TIMEOUT_S)
    for _ in range(steps):
        opt.zero_grad()
        model(torch.ones(3, 2)).sum().backward()
        opt.step()
    opt.finish()
    return digest(opt)


def hook_that_writes(steps: int) -> list[float]:
    """A hook of the inner optimizer changes gradients in place. It must not change what other ranks read."""
    weight = torch.nn.Parameter(torch.zeros(1))
    inner = torch.optim.SGD([weight], lr=1.0)

    def halve(*_: object) -> None:
        weight.grad.mul_(0.5)

    inner.register_step_pre_hook(halve)
    opt = outpace.DistributedOptimizer(inner, "allreduce", timeout_s=TIMEOUT_S)
    for _ in range(steps):
        weight.grad = torch.ones(1)
        opt.step()
    opt.finish()
    return weight.tolist()


def leaves_with_buffers() -> list[float]:
    """Rank 1's script simply ends; its buffers count all the same."""
    model = torch.nn.BatchNorm1d(2)
    opt = plain(model)
    model.running_mean.fill_(1.0)
    if my_rank() == 0:
        opt.finish()
    return model.running_mean.tolist()


class CountsInItsGroup(torch.optim.SGD):
    """An optimizer that keeps state in its parameter groups."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
        return super().step(closure)


def group_state(steps: int) -> list[int]:
    """What the optimizer itself counts in its groups is not put back."""
    weight = torch.nn.Parameter(torch.zeros(1))
    inner = CountsInItsGroup([{"params": [weight], "k": 0}], lr=1.0)
    opt = outpace.DistributedOptimizer(inner, "allreduce", timeout_s=TIMEOUT_S)
    for _ in range(steps):
        weight.grad = torch.ones(1)
        opt.step()
    opt.finish()
    return [inner.param_groups[0]["k"], opt.stats.version]


def lost_snapshot_writers(directory: str) -> ranks.Report:
    """The writers of two snapshots in turn are killed while a slow rank needs one, and the last one needs that rank."""
    rank = my_rank()
    report = ranks.Report(rank)
    if rank in (1, 2):
        os.environ["OUTPACE_FAULT"] = f"kill:writing-snapshot:{rank}"
    counter = ranks.Counter(40, "eager:quorum=2,max_staleness=1,grace=0,min_ranks=1", report)
    if rank == 3:
        wait_for_version(counter.opt, 1)
    for step in range(40):
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
    return float(weight)
