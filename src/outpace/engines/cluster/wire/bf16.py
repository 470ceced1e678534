"""Host sums in bfloat16: half the bytes of float32.

sum = bf16(S_1) + ... + bf16(S_H)        S_h = sum_i w_i bf16(g_i), in float32, over the contributions of host h

Beyond the rounding of every contribution, which is all there is on one machine, host sums are rounded to bfloat16 and
the backend adds them in bfloat16: for H hosts, each at most 2^-8 of a host sum or of a sum of some of them. All hosts
end with the same bits. A sum beyond 3.396e38 is infinite, and its round void.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from outpace.engines.cluster.group import Group
from outpace.engines.cluster.wire.piece import Piece
from outpace.engines.cluster.wire.stages import Wire
from outpace.engines.sums import Terms


class Bfloat16Wire(Wire):
    """Contributions rounded by the codec, host sums once more."""

    def stages(self, group: Group, piece: Piece, terms: Terms | None, contributors: int) -> Iterator[Any]:
        """One sum over hosts."""
        if terms is None:
            piece.whole.zero_()
        else:
            for index, chunk in piece.numbered():
                self._sums.reduce(index, terms, chunk)
        rounded = piece.whole.to(torch.bfloat16)
        yield group.add_up(rounded)
        piece.whole.copy_(rounded)
