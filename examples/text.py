"""Text of unequal length: batches of equal cost, drawn from one pool by whoever is free.

    torchrun --nproc-per-node 4 examples/text.py

The text is what Python's own standard library says of itself: a thousand paragraphs of 4 to 400 letters. Batches of 16
would differ in cost by several times; here each has about as many letters as any other, and little padding. Gradients
are weighed by letters, so that each counts the same. Whoever is free draws the next batch, and nobody waits for a slow
rank at the end of an epoch.
"""

import argparse
import ast
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import outpace
from outpace.data import LengthBalancedBatches

LETTERS, PARAGRAPHS, LONGEST = 128, 1000, 400


def paragraphs() -> list[torch.Tensor]:
    """Of docstrings, as ASCII. The next letter is what is to be learned."""
    found: list[torch.Tensor] = []
    for path in sorted(Path(ast.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_bytes())
        explained = (node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)))
        for text in "\n\n".join(ast.get_docstring(node) or "" for node in explained).split("\n\n"):
            letters = " ".join(text.split()).encode("ascii", "ignore")[:LONGEST]
            if len(letters) >= 4:
                found.append(torch.tensor(list(letters)))
        if len(found) >= PARAGRAPHS:
            break
    return found[:PARAGRAPHS]


def pad(batch: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Letters, and for each of them the next."""
    letters = pad_sequence([text[:-1] for text in batch], batch_first=True)
    return letters, pad_sequence([text[1:] for text in batch], batch_first=True, padding_value=-100)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(LETTERS, 32, padding_idx=0), nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, LETTERS)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(self.embedding(letters))
        scores: torch.Tensor = self.head(states)
        return scores


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--slow-ms", type=float, default=0.0, help="how much longer the last rank computes a batch")
    arguments = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    data, model = paragraphs(), Reader()
    plain = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = outpace.DistributedOptimizer(plain, strategy="eager-majority:normalise=samples", model=model)
    batches = LengthBalancedBatches([len(text) for text in data], batch_size=16, dataset=data)
    loader = DataLoader(data, batch_sampler=batches, collate_fn=pad)
    for epoch in range(batches.epoch, arguments.epochs):
        batches.set_epoch(epoch)
        steps, total = 0, 0.0
        for letters, following in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(letters).flatten(0, 1), following.flatten())
            loss.backward()
            if rank == world - 1:
                time.sleep(arguments.slow_ms / 1000)
            optimizer.step()
            steps, total = steps + 1, total + loss.item()
        print(f"epoch {epoch}, rank {rank}: {steps} batches, loss {total / max(1, steps):.3f}", flush=True)
    optimizer.finish()


if __name__ == "__main__":
    main()
