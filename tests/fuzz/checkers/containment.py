"""Rule 11, G12: what is not finite is never averaged, and is put down to its rank; a void round has overflowed."""

from __future__ import annotations

import torch

from outpace.protocol.events import Event, Outcome, Refuse
from outpace.protocol.round import Round
from tests.fuzz.checkers.base import Checker


class Containment(Checker):
    def event(self, event: Event, outcome: Outcome) -> None:
        if isinstance(event, Refuse) and not outcome.is_ignored:
            key = (event.rank, event.incarnation, event.step)
            assert not self.scene.arrivals[key].is_finite, f"{key} was refused, and is finite"

    def completed(self, record: Round) -> None:
        for c in record.contributions:
            assert self.scene.arrival(c).is_finite, f"round {record.number} includes {c[:3]}, which is not finite"
        if not record.void:
            result = self.scene.tensors.result(record).gradients
            assert all(bool(g.isfinite().all()) for g in result), f"round {record.number} is applied, and not finite"
        elif record.contributions:
            assert self._overflows(record), f"round {record.number} is void, and its contributions do not overflow"

    def _overflows(self, record: Round) -> bool:
        """Whether the sum of the contributions' sizes is beyond what a float holds."""
        factors, _ = record.factors(self.scene.rules.normalise)
        arrivals = [self.scene.arrival(c) for c in record.contributions]
        sizes = (
            sum(factor * abs(a.values[index]).max() for factor, a in zip(factors, arrivals, strict=True))
            for index in range(len(self.scene.tensors.vector.entries))
        )
        return max(sizes) > 0.99 * torch.finfo(torch.float32).max
