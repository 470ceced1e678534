"""What the ranks of the feature tests do where the numbers of a step are what counts. Runs in processes of its own."""

from __future__ import annotations

import json
import math
import time

import torch
from torch.nn.parallel import DistributedDataParallel

import outpace
from tests.support import ranks
from tests.support.features import batches, loss_of, plain
from tests.support.ranks import TIMEOUT_S, digest, my_rank, world


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


def other_threads(dtype: str, steps: int) -> tuple[list[str], int]:
    """Each rank has another number of threads. Digests for several optimizers, and the threads at the end."""
    torch.set_num_threads(1 + 2 * my_rank())
    digests = []
    for inner, options in (("SGD", {"momentum": 0.9}), ("AdamW", {"fused": True}), ("RMSprop", {"momentum": 0.5})):
        torch.manual_seed(my_rank())
        weights = [torch.nn.Parameter(torch.randn(n).to(getattr(torch, dtype))) for n in (1000, 100_003)]
        opt = outpace.DistributedOptimizer(
            getattr(torch.optim, inner)(weights, lr=0.1, **options), "allreduce", timeout_s=TIMEOUT_S
        )
        for _ in range(steps):
            for weight in weights:
                weight.grad = torch.randn_like(weight)
            opt.step()
        opt.finish()
        digests.append(digest(opt))
    return digests, torch.get_num_threads()
