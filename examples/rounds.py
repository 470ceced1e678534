"""Micro-batches: a step for every four of them, and for what is left at the end.

    torchrun --nproc-per-node 4 examples/rounds.py

Each rank has data of another length, and each sentence another number of words, as text has. Gradients are weighed by
samples, so that a rank with little data does not count for more than it has.
"""

import os

import torch
from torch import nn

import outpace

WORDS = 100
SCORES = torch.randn(WORDS, generator=torch.Generator().manual_seed(0))  # what is to be learned: a score for each word


def sentences(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Mini-batches of sentences of different lengths, each with the sum of its words' scores."""
    generator = torch.Generator().manual_seed(rank)
    batches = []
    for _ in range(240 + 20 * rank):
        length = int(torch.randint(5, 50, (), generator=generator))
        words = torch.randint(WORDS, (16, length), generator=generator)
        batches.append((words, SCORES[words].sum(dim=1, keepdim=True)))
    return batches


def main() -> None:
    """Trains over the data once."""
    rank = int(os.environ.get("RANK", "0"))
    model = nn.EmbeddingBag(WORDS, 1, mode="sum")
    plain = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer = outpace.DistributedOptimizer(plain, strategy="eager-majority:normalise=samples", model=model)
    for number, batches in enumerate(optimizer.rounds(sentences(rank), microbatches=4)):
        losses = []
        for words, score in batches:
            loss = nn.functional.mse_loss(model(words), score)
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        if rank == 0 and number % 10 == 9:
            print(f"step {number + 1}: {batches.samples:.0f} samples, loss {sum(losses) / len(losses):.3f}", flush=True)
    optimizer.finish()  # waits for ranks that have more data, and applies what they still contribute
    if rank == 0:
        print(optimizer.stats)


if __name__ == "__main__":
    main()
