"""How a round's contributions are summed over hosts: one short file for each codec, and what they have in common.

The codecs own what a coded sum is, here and on one machine; a wire owns what of it is sent.

    none          host sums as they are                                       4 bytes an entry
    bf16          host sums in bfloat16                                       2
    global-qsgd   sums of codes, under one scale for all hosts                1, as long as sums fit int8
    ok-topk       entries that are not zero, to the owner of their chunk,     6 for each of them
                  and those that it selects, to all

An entry of 4 bytes is one of a sum in float32; models of float64 are summed, and sent, in float64.
"""

from outpace.engines.cluster.wire.choice import wire_of
from outpace.engines.cluster.wire.piece import Piece
from outpace.engines.cluster.wire.stages import Wire

__all__ = ["Piece", "Wire", "wire_of"]
