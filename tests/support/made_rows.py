"""Rows and rounds to code, made from a seed."""

import torch

from outpace.codecs import contribution_seed
from outpace.vector import accumulator


def made_rows(count, elements, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(elements, generator=generator, dtype=torch.float64).to(dtype) for _ in range(count)]


def coded_sum(codec, rows, factors=None, step=0, chunk=0, seeds=None):
    out = torch.full((rows[0].numel(),), 7.0, dtype=accumulator(rows[0].dtype))  # scratch holds an older sum
    seeds = seeds or [contribution_seed(rank, step) for rank in range(len(rows))]
    codec.reduce(out, rows, factors or [1.0] * len(rows), seeds, chunk)
    return out


def plain_sum(rows, factors=None):
    factors = factors or [1.0] * len(rows)
    out = rows[0].to(accumulator(rows[0].dtype)) * factors[0]
    for row, factor in zip(rows[1:], factors[1:], strict=True):
        out.add_(row, alpha=factor)
    return out
