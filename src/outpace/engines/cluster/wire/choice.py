"""Which wire is a codec's."""

from __future__ import annotations

from outpace.codecs.bf16 import Bfloat16
from outpace.codecs.global_qsgd import GlobalQSGD
from outpace.codecs.ok_topk import OkTopk
from outpace.engines.cluster.wire.bf16 import Bfloat16Wire
from outpace.engines.cluster.wire.global_qsgd import GlobalQSGDWire
from outpace.engines.cluster.wire.ok_topk import OkTopkWire
from outpace.engines.cluster.wire.plain import PlainWire
from outpace.engines.cluster.wire.stages import Wire
from outpace.engines.sums import RowSums
from outpace.errors import OutpaceError


def wire_of(sums: RowSums) -> Wire:
    """The wire of a run's codec. Raises for a codec that has none, rather than to send something else."""
    codec = sums.codec
    if codec.is_plain_sum:
        return PlainWire(sums)
    if isinstance(codec, Bfloat16):
        return Bfloat16Wire(sums)
    if isinstance(codec, GlobalQSGD):
        return GlobalQSGDWire(sums, codec)
    if isinstance(codec, OkTopk):
        return OkTopkWire(sums, codec)
    raise OutpaceError(f"{codec!r} has no wire: it works on one host only. Use one of outpace's codecs between hosts")
