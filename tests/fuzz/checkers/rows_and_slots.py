"""Rules 4 and 9: a row is not written again before its round is complete, a slot not while its result is kept."""

from __future__ import annotations

import torch

from outpace.interface import Result
from outpace.protocol.events import Event, Outcome
from outpace.protocol.round import Round
from tests.fuzz.checkers.base import Checker
from tests.fuzz.lives import Life
from tests.fuzz.models import bits
from tests.fuzz.watch import Scene
from tests.support.protocol.checkers import check_rows_and_slots


class RowsAndSlots(Checker):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._results: dict[int, list[bytes]] = {}

    def event(self, event: Event, outcome: Outcome) -> None:
        check_rows_and_slots(self.ledger)

    def completed(self, record: Round) -> None:
        for c in (*record.contributions, *record.refused):
            now, _ = self.scene.tensors.copy_of_row(c.rank, c.row)
            assert torch.equal(now, self.scene.arrival(c).row), f"the row of {c[:3]} was changed after it arrived"
        if not record.void:
            self._results[record.number] = [bits(g) for g in self.scene.tensors.result(record).gradients]

    def applying(self, life: Life, result: Result) -> None:
        if not result.round.void:
            same = [bits(g) for g in result.gradients] == self._results[result.round.number]
            assert same, f"{life} reads another result of round {result.round.number} than there was"
