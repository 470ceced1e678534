"""What the programs of these tests train, and how they tell what came of it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from outpace.data import SharedSampler
from tests.support.processes import until

ROWS, BATCH = 128, 8
MORE = 10  #: batches of the 16 of an epoch: more than half


def data(rows: int = ROWS) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(rows, 6, generator=generator)
    return TensorDataset(inputs, inputs.square().sum(1, keepdim=True))


def shared_loader() -> DataLoader:
    """Each sample with its number, from one pool for both ranks."""
    rows = TensorDataset(*data().tensors, torch.arange(ROWS))
    return DataLoader(rows, batch_size=BATCH, sampler=SharedSampler(rows, BATCH))


class Drawn:
    """What this rank was given in each epoch. The last one computes nothing of the first epoch before rank 0 has
    computed more than an even share."""

    def __init__(self, folder: str) -> None:
        self._mark = Path(folder, "more than an even share")
        self.epochs: list[list[int]] = []

    def note(self, epoch: int, numbers: torch.Tensor) -> None:
        self.epochs += [[] for _ in range(len(self.epochs), epoch + 1)]
        self.epochs[epoch] += numbers.tolist()
        if rank() == 0 and len(self.epochs[0]) == MORE * BATCH:
            self._mark.touch()
        if rank() == 1:
            until(self._mark.exists, 60)


def network(has_buffers: bool = False) -> torch.nn.Sequential:
    """Other weights on every rank: all begin with rank 0's."""
    torch.manual_seed(rank())
    between = torch.nn.BatchNorm1d(16) if has_buffers else torch.nn.Tanh()
    return torch.nn.Sequential(torch.nn.Linear(6, 16), between, torch.nn.Linear(16, 1))


def rank() -> int:
    return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0")


def be_slow(step: int) -> None:
    """The last rank lags, at every other step."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    time.sleep(0.03 if rank() == world - 1 and step % 2 else 0.002)


def tell(folder: str, name: str, **facts: object) -> None:
    Path(folder, f"{name}-{rank()}.json").write_text(json.dumps(facts))


def weights(module: torch.nn.Module) -> list[float]:
    """Also of what frameworks have put around it."""
    return [value for p in module.parameters() for value in p.detach().float().flatten().tolist()]


def be_killed(rank_of_this: int) -> None:
    """The last rank is killed in the middle. The first trains on, as if for hours, until the launcher ends it."""
    if rank_of_this == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
