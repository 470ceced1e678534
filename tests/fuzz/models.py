"""Tiny models with real gradients. Owns their weights at the start, their data, and gradients that go wrong."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from outpace.replica.replica import OptimizerReplica
from tests.fuzz.plan import ModelPlan

INPUTS, OUTPUTS, BATCH, BATCHES = 3, 2, 4, 16
HUGE = 3e38  #: finite, and the sum of two is not


class TinyModel(nn.Module):
    """A linear layer, perhaps behind a normalisation, with a parameter that is not always used, and a frozen one."""

    def __init__(self, plan: ModelPlan, seed: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(INPUTS) if plan.batch_norm else nn.Identity()
        self.linear = nn.Linear(INPUTS, OUTPUTS)
        self.shy = nn.Parameter(torch.zeros(OUTPUTS, dtype=torch.bfloat16 if plan.half else torch.float32))
        self.frozen = nn.Parameter(torch.zeros(OUTPUTS), requires_grad=False)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x: torch.Tensor, is_shy: bool) -> torch.Tensor:
        """Without its shy parameter, that one gets no gradient."""
        y: torch.Tensor = self.linear(self.norm(x)) + self.frozen
        return y if is_shy else y + self.shy.float()


class Data:
    """The same batches for all ranks of a run."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._x = torch.randn((BATCHES, BATCH, INPUTS), generator=generator)
        self._y = torch.randn((BATCHES, BATCH, OUTPUTS), generator=generator)

    def gradients(self, model: TinyModel, index: int, is_shy: bool) -> None:
        """Computes them with a real forward and backward pass."""
        model.zero_grad(set_to_none=True)
        at = index % BATCHES
        nn.functional.mse_loss(model(self._x[at], is_shy), self._y[at]).backward()


def replica_parts(plan: ModelPlan, seed: int) -> tuple[torch.optim.Optimizer, TinyModel]:
    """An optimizer and its model, with weights of their own."""
    model = TinyModel(plan, seed)
    options: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.01}
    if plan.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), **options), model
    nesterov = plan.optimizer == "nesterov"
    return torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=nesterov, **options), model


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes alike on every machine: how many threads a product is cut for changes its bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def poison(model: TinyModel, number: int) -> None:
    """Makes one element of one gradient something that is not finite."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    chosen = gradients[number % len(gradients)].view(-1)
    chosen[number % len(chosen)] = (math.nan, math.inf, -math.inf)[number % 3]


def enlarge(model: TinyModel) -> None:
    """Makes all gradients so large that a sum of two overflows."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.fill_(HUGE)


def bits(tensor: torch.Tensor) -> bytes:
    """What it holds, exactly."""
    data: bytes = tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    return data


def fingerprint(replica: OptimizerReplica) -> str:
    """Of weights, frozen ones too, optimizer state and the hyper-parameters in force, bit by bit."""
    digest = hashlib.blake2b(digest_size=12)
    for frozen in replica.others.values():
        digest.update(bits(frozen))
    for parameter in replica.parameters:
        digest.update(bits(parameter))
        for key, value in sorted(replica.inner.state.get(parameter, {}).items()):
            digest.update(key.encode())
            digest.update(bits(value) if isinstance(value, torch.Tensor) else repr(value).encode())
    digest.update(replica.hyper)
    return digest.hexdigest()


def fingerprint_of_buffers(replica: OptimizerReplica) -> str:
    """Of the model's buffers."""
    return hashlib.blake2b(b"".join(map(bits, replica.model_buffers.tensors().values())), digest_size=12).hexdigest()
