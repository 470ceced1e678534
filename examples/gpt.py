"""A small GPT on bytes in a loop of its own, which does what nanoGPT's `train.py` does (github.com/karpathy/nanoGPT):
accumulation, bfloat16, clipping, warm-up and a cosine, held-out loss and a checkpoint now and then.

    torchrun --nproc-per-node 4 examples/gpt.py --text docs

What outpace changes against the same script with DistributedDataParallel is marked with (1) to (5).
"""

import argparse
import math
from pathlib import Path

import torch
from torch import nn

import outpace  # (1): was torch.nn.parallel.DistributedDataParallel and init_process_group

CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2


class Block(nn.Module):
    """Attention and a small network, each with a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.project(self.norms[0](x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks(self.tokens(x) + self.places(torch.arange(x.shape[1])))
        return nn.functional.cross_entropy(self.head(self.norm(hidden)).flatten(0, 1), y.flatten())


def batch(data: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(data) - CONTEXT - 1, (size,)).tolist()
    return torch.stack([data[s : s + CONTEXT] for s in starts]), torch.stack(
        [data[s + 1 : s + CONTEXT + 1] for s in starts]
    )


def rate(step: int, steps: int) -> float:
    """Warm-up, then a cosine."""
    warm_up = max(1, steps // 20)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def main() -> None:
    """Trains, looks at held-out text now and then, and keeps a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=Path("docs"), help="a folder of Markdown files")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--strategy", default="eager-majority")
    parser.add_argument("--checkpoint", default="")
    arguments = parser.parse_args()
    text = "\n".join(file.read_text() for file in sorted(arguments.text.glob("*.md"))).encode()
    data = torch.tensor(list(text))
    train, held_out = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]

    model = GPT()  # (2): no DDP(model), and no model.module in what is saved
    plain = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1, betas=(0.9, 0.95))
    optimizer = outpace.DistributedOptimizer(  # (3); the average is clipped, as clip_grad_norm_ did after DDP
        plain, strategy=arguments.strategy, model=model, max_grad_norm=1.0
    )
    rank = optimizer.stats.rank
    torch.manual_seed(rank)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, arguments.steps))
    for step in range(arguments.steps):
        optimizer.zero_grad()
        for _ in range(arguments.accumulate):  # without no_sync(): backward() meets nobody
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(*batch(train, 8)) / arguments.accumulate
            loss.backward()
        optimizer.step()
        scheduler.step()
        if (step + 1) % max(1, arguments.steps // 3) == 0:
            optimizer.synchronize()  # (4): all ranks, one version
            if rank == 0:
                with torch.no_grad():
                    print(f"step {step + 1}: held-out loss {model(*batch(held_out, 32)):.3f}", flush=True)
                if arguments.checkpoint:
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, arguments.checkpoint)
    optimizer.finish()  # (5)


if __name__ == "__main__":
    main()
