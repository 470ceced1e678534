"""Contributions in bfloat16. Owns the rounding before the sum; the sum itself stays wide.

sum = sum_i w_i bf16(g_i), made in float32 (in float64 for models of float64). Half the bytes of float32, a relative
error of at most 2^-8 for each contribution, biased, without error feedback. bfloat16 has the range of float32 but for
the last 0.2 %: what is finite and beyond 3.396e38 becomes infinite. No contribution is at fault, the round is void.
Between hosts, sums of hosts are rounded once more and added in bfloat16 (`engines/cluster/wire.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.codecs.base import Codec, Tensors, add_rows


class Bfloat16(Codec):
    """Every contribution rounded to bfloat16, summed in float32."""

    @property
    def is_plain_sum(self) -> bool:
        return False

    def reduce(self, out: Tensor, rows: Tensors, factors: Sequence[float], seeds: Sequence[int], chunk: int) -> None:
        add_rows(out, (row.to(torch.bfloat16) for row in rows), factors)
