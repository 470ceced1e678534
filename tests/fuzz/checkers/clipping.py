"""Rule 7: the clip factor is that of the whole averaged gradient, as `clip_grad_norm_` would have it."""

from __future__ import annotations

import math

from outpace.protocol.round import Round
from tests.fuzz.checkers.base import Checker


class Clipping(Checker):
    def completed(self, record: Round) -> None:
        limit = self.scene.max_grad_norm
        if record.void or limit is None:
            assert record.clip == 1.0, f"round {record.number} is clipped by {record.clip} without a limit"
            return
        squares = (float((g.double() ** 2).sum()) for g in self.scene.tensors.result(record).gradients)
        expected = min(1.0, limit / (math.sqrt(sum(squares)) + 1e-6))
        close = math.isclose(record.clip, expected, rel_tol=1e-2)
        assert close, f"round {record.number} is clipped by {record.clip}, its norm asks for {expected}"
