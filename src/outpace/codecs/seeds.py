"""Randomness of a coded contribution. Owns its seeds; never touches the global generators, which training uses.

The bits depend on (rank, step, chunk) alone, so whoever reduces a chunk, and however often, rounds it the same way.
"""

from __future__ import annotations

import torch

_STEP_BITS = 40
_MASK = 2**64 - 1


def contribution_seed(rank: int, step: int) -> int:
    """A seed for each contribution. No two are equal up to 2**24 ranks and 2**40 steps."""
    return _mixed((rank << _STEP_BITS) + step)


def chunk_generator(seed: int, chunk: int) -> torch.Generator:
    """The generator for one chunk of a contribution. Mixed, for torch seeds its CPU generator with the low 32 bits."""
    return torch.Generator().manual_seed(_mixed(_mixed(seed) + chunk))


def _mixed(number: int) -> int:
    """An element of the SplitMix64 sequence (Steele, Lea and Flood, OOPSLA 2014)."""
    bits = (number * 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)
