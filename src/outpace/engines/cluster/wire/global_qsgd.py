"""Global-QSGD between hosts: sums of codes, a byte each as long as they fit.

r = max over hosts of their largest |w_i g_i|      one for each chunk
sum = r/s (C_1 + ... + C_H)                        C_h: the codes of host h's contributions, added

Codes are those of the codec on one machine, each drawn from its contribution's own seed, for as many levels as all
contributors of the round allow. Whole numbers are added, so that the sum has the bits it has on one machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from outpace.codecs.global_qsgd import GlobalQSGD, decode, shared_scale, summed_codes
from outpace.engines.cluster.group import Group
from outpace.engines.cluster.wire.piece import Piece
from outpace.engines.cluster.wire.stages import Wire
from outpace.engines.cluster.wire.whole_numbers import addable, dtype_for, numbers_of
from outpace.engines.sums import RowSums, Terms


class GlobalQSGDWire(Wire):
    """Scales first, then codes."""

    collectives = 2

    def __init__(self, sums: RowSums, codec: GlobalQSGD) -> None:
        super().__init__(sums)
        self._codec = codec

    def stages(self, group: Group, piece: Piece, terms: Terms | None, contributors: int) -> Iterator[Any]:
        """The largest scales, then one sum over hosts."""
        shared = torch.tensor([_scale(index, terms) for index, _ in piece.numbered()], dtype=torch.float64)
        yield group.add_up(shared, largest=True)
        levels, scales = self._codec.levels_for(contributors), shared.tolist()
        codes = torch.zeros(piece.whole.shape, dtype=dtype_for(levels * contributors))
        places = torch.split(codes, [chunk.numel() for chunk in piece.chunks])
        if terms is not None:
            for index, (place, scale) in enumerate(zip(places, scales, strict=True), piece.first):
                rows = [row[index] for row in terms.rows]
                place.copy_(summed_codes(rows, terms.factors, terms.seeds, index, scale, levels))
        added = addable(codes)
        yield group.add_up(added)
        numbers_of(added, codes)
        for chunk, place, scale in zip(piece.chunks, places, scales, strict=True):
            decode(chunk, place, scale, levels)


def _scale(index: int, terms: Terms | None) -> float:
    """Of this host's rows. Infinite if any entry is not finite: there is no largest of numbers and NaN."""
    scale = 0.0 if terms is None else shared_scale([row[index] for row in terms.rows], terms.factors)
    return scale if math.isfinite(scale) else math.inf
