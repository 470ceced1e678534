"""A script for torch's DDP, before outpace: `diff examples/ddp.py examples/ddp_with_outpace.py` is the conversion.

torchrun --nproc-per-node 4 examples/ddp.py
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    """Fits a random linear function."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(2048, 16)
    data = TensorDataset(inputs, inputs @ torch.randn(16, 1))
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.6f}", flush=True)
    del model  # before its group: the other way round torch's Gloo may hang
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
