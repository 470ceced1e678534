"""Text of unequal length: batches of equal cost, drawn from one pool by whoever is free.

    torchrun --nproc-per-node 4 examples/text.py

Sentences have 4 to 200 words. Batches of 16 of them would differ in cost by several times; here each batch has about as
many words as any other, and little padding. Gradients are weighed by words, so that each word counts the same. A rank
that is slower, for whatever reason, draws fewer batches, and nobody waits for it at the end of an epoch.
"""

import argparse
import os
import random
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import outpace
from outpace.data import LengthBalancedBatches

WORDS, KINDS, SENTENCES = 200, 5, 2000


def sentences() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each word belongs to one of five kinds, and so does each next word: that is what is to be learned."""
    draw = random.Random(0)
    found = []
    for _ in range(SENTENCES):
        length = min(200, max(4, round(draw.lognormvariate(3.2, 0.8))))
        words = torch.tensor([draw.randrange(1, WORDS) for _ in range(length)])
        found.append((words, words.roll(1) % KINDS))
    return found


def pad(batch: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    words, kinds = zip(*batch, strict=True)
    return pad_sequence(words, batch_first=True), pad_sequence(kinds, batch_first=True, padding_value=-100)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(WORDS, 32, padding_idx=0), nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, KINDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(self.embedding(words))
        kinds: torch.Tensor = self.head(states)
        return kinds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--slow-ms", type=float, default=0.0, help="how much longer the last rank computes a batch")
    arguments = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    data, model = sentences(), Tagger()
    plain = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = outpace.DistributedOptimizer(plain, strategy="eager-majority:normalise=samples", model=model)
    batches = LengthBalancedBatches([len(words) for words, _ in data], batch_size=16, dataset=data)
    loader = DataLoader(data, batch_sampler=batches, collate_fn=pad)
    for epoch in range(arguments.epochs):
        batches.set_epoch(epoch)
        steps, total = 0, 0.0
        for words, kinds in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(words).flatten(0, 1), kinds.flatten())
            loss.backward()
            if rank == world - 1:
                time.sleep(arguments.slow_ms / 1000)
            optimizer.step()
            steps, total = steps + 1, total + loss.item()
        print(f"epoch {epoch}, rank {rank}: {steps} batches, loss {total / max(1, steps):.3f}", flush=True)
    optimizer.finish()


if __name__ == "__main__":
    main()
