"""Global-QSGD (Xin, Canini, Richtárik and Horváth, arXiv 2305.18627; ECAI 2025), with linear levels.

r = max_i |w_i g_i|_inf        one scale for all contributors, for each chunk
c_i = sign(g_i) stochastic_round(s |w_i g_i| / r), whole numbers in [-s, s]
sum = r/s sum_i c_i            whole numbers are added, so that neither order nor grouping changes a bit

Unbiased, so it needs no error feedback; off by less than r/s per entry and contributor. |sum_i c_i| <= N s must fit
the numbers on the wire: by default s = 127 // N, which is int8 (N contributors to the round; beyond 127 of them s = 1,
and int8 no longer holds). Weights go in before the coding, because a collective can add codes but not weigh them.

The paper allows any norm for r. The largest entry is exact wherever it is computed, and on a chunk of 131,072 normal
entries at s = 15 the variance is 0.017 of the squared length of the gradient; with the 2-norm it is 18 times the
squared length. One huge entry sets r for its whole chunk and rounds most others to zero: clip before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.codecs.base import Codec, Tensors, chunk_generator
from outpace.errors import InvalidRules
from outpace.spec import is_whole
from outpace.vector import accumulator

MOST_LEVELS = 32_767  #: codes fit int16, and their sums int32 for up to 65,536 contributors
_INT8_MOST = 127


@dataclass
class GlobalQSGD(Codec):
    """Small whole numbers under one shared scale, rounded at random. Without `levels`, sums fit int8."""

    levels: int | None = None

    def __post_init__(self) -> None:
        levels = self.levels
        if levels is not None and not (is_whole(levels) and 1 <= levels <= MOST_LEVELS):
            raise InvalidRules(
                f"levels={levels!r} must be a whole number from 1 to {MOST_LEVELS}, or none for 127 // contributors, "
                "whose sums fit int8"
            )

    @property
    def is_plain_sum(self) -> bool:
        return False

    def levels_for(self, contributors: int) -> int:
        return self.levels if self.levels is not None else max(1, _INT8_MOST // contributors)

    def reduce(self, out: Tensor, rows: Tensors, factors: Sequence[float], seeds: Sequence[int], chunk: int) -> None:
        """Codes every row, adds the codes, decodes the sum. All NaN if any row has an entry that is not finite."""
        scale, levels = shared_scale(rows, factors), self.levels_for(len(rows))
        decode(out, summed_codes(rows, factors, seeds, chunk, scale, levels), scale, levels)


def shared_scale(rows: Tensors, factors: Sequence[float]) -> float:
    """r: the largest magnitude in any weighed row, NaN or infinite if an entry is."""
    largest = [_weighed(row, factor).aminmax() for row, factor in zip(rows, factors, strict=True)]
    return float(torch.stack([bound.abs() for pair in largest for bound in pair]).max())


def summed_codes(
    rows: Tensors, factors: Sequence[float], seeds: Sequence[int], chunk: int, scale: float, levels: int
) -> Tensor:
    """Codes of all rows added: whole numbers, so that sums of such sums are the same however rows are grouped."""
    total = torch.zeros(rows[0].shape, dtype=torch.int32, device="cpu")
    for row, factor, seed in zip(rows, factors, seeds, strict=True):
        total += encode(_weighed(row, factor), scale, levels, chunk_generator(seed, chunk))
    return total


def encode(row: Tensor, scale: float, levels: int, generator: torch.Generator) -> Tensor:
    """Codes of a row, each rounded away from zero with the probability that makes it right on average.

    No entry may be larger than the scale: |row / scale| <= 1 in floating point too, so that no code passes `levels`.
    """
    if scale == 0.0 or not math.isfinite(scale):
        return torch.zeros(row.shape, dtype=torch.int32, device="cpu")
    exact = (row / scale).mul_(levels)
    codes = exact.to(torch.int32)  # towards zero; `trunc` would wake all threads even for a short row
    odds = (exact - codes).abs_()
    is_up = torch.rand(row.shape, dtype=row.dtype, generator=generator, device="cpu") < odds
    return codes.add_(exact.sign_().mul_(is_up).to(torch.int32))


def decode(out: Tensor, codes: Tensor, scale: float, levels: int) -> None:
    """What codes, or a sum of codes, stand for; NaN under a scale that is not finite.

    Divides first: scale / levels may be too small a number for float32.
    """
    if not math.isfinite(scale):
        out.fill_(math.nan)
        return
    out.copy_(codes).div_(levels).mul_(scale)


def _weighed(row: Tensor, factor: float) -> Tensor:
    wide = row.to(accumulator(row.dtype))
    return wide if factor == 1.0 else wide * factor
