"""A rank that dies is started again, alone, and rejoins: the others never stop.

outpace run -n 3 examples/restart.py

Rank 1 kills itself in the middle of its first life. Its replacement takes up the others' weights and goes on.
"""

import os
import signal
import time

import torch
from torch import nn

import outpace

STEPS, DEADLY = 100, 40


def is_back(stats: outpace.Stats) -> bool:
    """Whether a rank takes part that was started again."""
    return any(rank.incarnation > 1 and rank.state != "dead" for rank in stats.ranks)


def main() -> None:
    """Fits a random linear function, and dies once."""
    rank, life = int(os.environ["RANK"]), int(os.environ["OUTPACE_LIFE"])
    torch.manual_seed(0)
    truth, model = torch.randn(8, 1), nn.Linear(8, 1)
    optimizer = outpace.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), "eager-majority", model)
    if life > 1:
        print(f"rank {rank} is back, at version {optimizer.stats.version}\n", end="", flush=True)
    torch.manual_seed(100 * life + rank)
    steps, loss = 0, torch.zeros(())
    while steps < STEPS or not is_back(optimizer.stats):  # to see it come back; a real script ends as it likes
        time.sleep(0.01)
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x @ truth)
        loss.backward()
        optimizer.step()
        steps += 1
        if (rank, life, steps) == (1, 1, DEADLY):
            os.kill(os.getpid(), signal.SIGKILL)
    optimizer.finish()
    print(f"rank {rank}, life {life}: {steps} steps, loss {loss.item():.6f}\n", end="", flush=True)


if __name__ == "__main__":
    main()
