"""Reinforcement learning with roll-outs of unequal length: nobody waits for the rank with the longest episode.

torchrun --nproc-per-node 4 examples/rollouts.py
torchrun --nproc-per-node 4 examples/rollouts.py --strategy allreduce    # everybody waits, as with DDP

An agent learns to walk along a corridor (REINFORCE). Most corridors are short, a few are very long, and each step of
the environment takes a millisecond. At the end every rank says how long it waited for the others.
"""

import argparse
import os
import random
import time

import torch
from torch import nn

import outpace

STEP_S = 0.001  #: what the environment takes for a step
SHORT, LONG, LONG_SHARE = 8, 80, 0.15


def episode(policy: nn.Module, length: int) -> tuple[torch.Tensor, float]:
    """Walks to the end of the corridor, or until patience is over. Returns the loss, and the share of right moves."""
    position, log_probabilities, right = 0, [], 0
    for _ in range(2 * length):
        time.sleep(STEP_S)
        choice = torch.distributions.Categorical(logits=policy(torch.tensor([1.0, position / LONG])))
        forward = choice.sample()
        log_probabilities.append(choice.log_prob(forward))
        right += int(forward)
        position = max(0, position + (1 if forward else -1))
        if position == length:
            break
    share = right / len(log_probabilities)
    return -(share - 0.5) * torch.stack(log_probabilities).mean(), share


def main() -> None:
    """Plays and learns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=60, help="of each rank")
    parser.add_argument("--strategy", default="eager-majority")
    arguments = parser.parse_args()
    rank = int(os.environ.get("RANK", "0"))
    draw = random.Random(rank)
    torch.manual_seed(rank)
    policy = nn.Linear(2, 2)
    optimizer = outpace.DistributedOptimizer(torch.optim.Adam(policy.parameters(), lr=0.1), arguments.strategy, policy)
    shares = []
    for _ in range(arguments.episodes):
        optimizer.zero_grad()
        loss, share = episode(policy, LONG if draw.random() < LONG_SHARE else SHORT)
        loss.backward()
        optimizer.step()
        shares.append(share)
    waited_s = optimizer.stats.waited_s
    optimizer.finish()
    tenth = max(1, len(shares) // 10)
    last = sum(shares[-tenth:]) / tenth
    print(
        f"rank {rank}: {last:.0%} of the last moves were right, waited {waited_s:.2f} s in steps\n", end="", flush=True
    )


if __name__ == "__main__":
    main()
