"""What the ranks of the tests of codecs between hosts do. Runs in processes of its own."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

import outpace
from tests.support import numbers_of_a_step
from tests.support.ranks import TIMEOUT_S, digest, my_rank, world

SHAPES = [(500, 300), (40,)]  #: two chunks, one of them with two tensors


class Coded(NamedTuple):
    """What a run came to."""

    digest: str  #: weights and optimizer state
    weights: list[torch.Tensor]


class Account(NamedTuple):
    """What a rank gave, what all took in, and what it kept back."""

    given: list[torch.Tensor]
    applied: list[torch.Tensor]  #: times the number of ranks
    kept: list[torch.Tensor]


def named(strategy: str, codec: str) -> str:
    return strategy if codec == "none" else f"{strategy}{',' if ':' in strategy else ':'}codec={codec}"


def gradients(step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * my_rank() + step)
    return [8 * torch.randn(shape, generator=generator) for shape in SHAPES]


def optimizer(strategy: str, momentum: float, **options) -> outpace.DistributedOptimizer:
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    inner = torch.optim.SGD(parameters, lr=1.0, momentum=momentum)
    return outpace.DistributedOptimizer(inner, strategy=strategy, timeout_s=TIMEOUT_S, **options)


def weights(opt: outpace.DistributedOptimizer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in opt.param_groups[0]["params"]]


def give(opt: outpace.DistributedOptimizer, tensors: Sequence[torch.Tensor]) -> None:
    for parameter, gradient in zip(opt.param_groups[0]["params"], tensors, strict=True):
        parameter.grad = gradient
    opt.step()


def train_each(codecs: Sequence[str], steps: int) -> list[Coded]:
    """In lock step, with one codec after the other: the same gradients, whatever the hosts."""
    found = []
    for codec in codecs:
        with optimizer(named("allreduce", codec), 0.9, max_grad_norm=1000.0) as opt:
            for step in range(steps):
                give(opt, gradients(step))
        found.append(Coded(digest(opt), weights(opt)))
    return found


def account(strategy: str, steps: int) -> Account:
    """Whole numbers, which float32 adds without rounding, at random times."""
    delays = random.Random(my_rank())
    given = [torch.zeros(shape) for shape in SHAPES]
    opt = optimizer(strategy, 0.0)
    for step in range(steps):
        now = [gradient.round() for gradient in gradients(step)]
        for total, gradient in zip(given, now, strict=True):
            total += gradient
        time.sleep(delays.random() * 0.01)
        give(opt, now)
    opt.synchronize()
    state = opt.state_dict()["outpace"]["extra"]["codec"]
    assert not any(key.startswith("sent.") for key in state), "all that was sent is applied or came back"
    applied = [-world() * weight for weight in weights(opt)]
    opt.finish()
    return Account(given, applied, [state[f"residual.{index}"] for index in range(len(SHAPES))])


def poisoned_each(value: float, codecs: Sequence[str], steps: int) -> list[tuple[list[float], list[int]]]:
    """The weights, and how many contributions of each rank were dropped."""
    found = []
    for codec in codecs:
        end, stats = numbers_of_a_step.poisoned(value, named("allreduce", codec), steps)
        found.append((end, [r.dropped for r in stats.ranks]))
    return found
