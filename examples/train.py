"""A complete training script: classify points on spirals, evaluate, save a checkpoint.

    torchrun --nproc-per-node 4 examples/train.py

What outpace changes against a script for one process is marked with (1), (2) and (3).
"""

import argparse
import math
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import outpace  # (1)

CLASSES = 3


def spirals(points: int, seed: int) -> TensorDataset:
    """Points on three interleaved spirals, and which spiral each lies on."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(CLASSES, (points,), generator=generator)
    radius = torch.rand(points, generator=generator)
    noise = 0.1 * torch.randn(points, generator=generator)
    angle = 4 * radius + label * (2 * math.pi / CLASSES) + noise
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), label)


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Share of the points that the model gets right."""
    inputs, labels = data.tensors
    model.eval()
    right = (model(inputs).argmax(dim=1) == labels).float().mean().item()
    model.train()
    return right


def main() -> None:
    """Trains for a few epochs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--checkpoint", default="", help="file to save to; none is saved without it")
    arguments = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    data, held_out = spirals(6144, seed=1), spirals(1024, seed=2)
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(data, num_replicas=world, rank=rank)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    plain = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = outpace.DistributedOptimizer(plain, strategy=arguments.strategy, model=model)  # (2)

    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()  # goes on with a majority; a rank that comes late is waited for by nobody
        optimizer.synchronize()  # all ranks, one version: from here on they evaluate the same model
        if rank == 0:
            print(f"epoch {epoch + 1}: {accuracy(model, held_out):.1%} of the held-out points right", flush=True)
            if arguments.checkpoint:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
                torch.save(state, arguments.checkpoint)

    optimizer.finish()  # (3)
    if rank == 0:
        print(optimizer.stats)


if __name__ == "__main__":
    main()
