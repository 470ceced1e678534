"""Whole numbers in the fewest bytes that a backend can add. Gloo adds int8 and int32 but not int16.

Two numbers whose sums fit int16 make one int32: a + 2^16 b. The sum of such pairs is the pair of the sums: what is
carried out of the lower half is taken back when the pair is taken apart.
"""

from __future__ import annotations

import torch

_HALF, _BITS = 1 << 15, 16


def dtype_for(most: int) -> torch.dtype:
    """In which numbers of at most this magnitude fit, with both signs."""
    return next(dtype for dtype in (torch.int8, torch.int16, torch.int32) if most <= torch.iinfo(dtype).max)


def addable(numbers: torch.Tensor) -> torch.Tensor:
    """The numbers as a backend can add them: themselves, or the two halves of the vector in pairs."""
    if numbers.dtype != torch.int16:
        return numbers
    split = (numbers.numel() + 1) // 2
    pairs = numbers[:split].to(torch.int32)
    pairs[: numbers.numel() - split] += numbers[split:].to(torch.int32) << _BITS
    return pairs


def numbers_of(added: torch.Tensor, numbers: torch.Tensor) -> None:
    """Writes what `addable` made, after sums were made of it, into `numbers`."""
    if added is numbers:
        return
    split = added.numel()
    low = (added + _HALF).bitwise_and_((1 << _BITS) - 1).sub_(_HALF)
    numbers[:split] = low
    numbers[split:] = (added - low)[: numbers.numel() - split] >> _BITS
