"""Rule 7, G2: sums run in an order that depends only on the set, so their bits do not depend on who came first.

Recomputed with the same torch operations from copies made at arrival, in the canonical order: rank, incarnation, step.
"""

from __future__ import annotations

import math

from outpace.engines.sums import join_meta
from outpace.engines.virtual.memory import SharedTensors
from outpace.protocol.events import Done, Event, Outcome
from outpace.protocol.round import Contribution, Round
from tests.fuzz.checkers.base import Checker
from tests.fuzz.models import bits
from tests.fuzz.watch import Scene


class SummationOrder(Checker):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._again = SharedTensors(scene.tensors.vector, scene.rules, scene.max_grad_norm)
        self._value = math.nan

    def event(self, event: Event, outcome: Outcome) -> None:
        if isinstance(event, Done):
            self._value = event.clip

    def completed(self, record: Round) -> None:
        if record.void:
            return
        ordered = record._replace(contributions=tuple(sorted(record.contributions, key=_canonical)))
        for c in ordered.contributions:
            arrival = self.scene.arrival(c)
            self._again.put_row(c.rank, c.row, (arrival.row, join_meta(arrival.present, arrival.hyper)))
        done = self._again.reduce(ordered)
        assert isinstance(done, Done)
        value = done.clip
        expected, found = self._again.result(ordered), self.scene.tensors.result(record)
        same = all(bits(a) == bits(b) for a, b in zip(expected.gradients, found.gradients, strict=True))
        assert same, f"round {record.number} has other bits than the sum of its contributions in their canonical order"
        assert value == self._value, f"round {record.number} was clipped by {self._value}, its canonical sum by {value}"


def _canonical(contribution: Contribution) -> tuple[int, int, int]:
    return contribution.rank, contribution.incarnation, contribution.step
