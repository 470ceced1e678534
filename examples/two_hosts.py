"""The same script on two machines. On each of them, with the first one's name:

torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint node0:29500 examples/two_hosts.py

To try it on one machine, whose ranks then meet through the loopback network as those of two hosts:

python examples/two_hosts.py --local
"""

import argparse
import os

import torch
from torch import nn

import outpace


def train(steps: int) -> float:
    """Fits a random linear function; returns a weight, which is the same on all ranks of all hosts."""
    torch.manual_seed(0)
    truth, model = torch.randn(8, 1), nn.Linear(8, 1)
    optimizer = outpace.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), "eager-majority", model)
    torch.manual_seed(1 + int(os.environ["RANK"]))
    for _ in range(steps):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x @ truth).backward()
        optimizer.step()
    optimizer.finish()
    return model.weight[0, 0].item()


def main() -> None:
    """Trains, and shows that all agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local", action="store_true", help="two ranks on each of two hosts that are this machine")
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    if arguments.local:
        print("weights:", *outpace.spawn(train, ranks=4, args=(arguments.steps,), hosts=2))
    else:
        print("weight:", train(arguments.steps))


if __name__ == "__main__":
    main()
