"""What the programs of these tests train, and how they tell what came of it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

ROWS, BATCH = 128, 8


def data(rows: int = ROWS) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(rows, 6, generator=generator)
    return TensorDataset(inputs, inputs.square().sum(1, keepdim=True))


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
