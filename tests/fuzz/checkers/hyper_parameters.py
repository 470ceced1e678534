"""Rule 7: hyper-parameters are those of the on-time contributor with the most own steps, and never go back."""

from __future__ import annotations

from outpace.interface import Result
from outpace.protocol.round import Round
from tests.fuzz.checkers.base import Checker
from tests.fuzz.lives import Life
from tests.fuzz.watch import Scene
from tests.support.protocol.reference import leaders


class HyperParameters(Checker):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._leaders: dict[int, tuple[int, int] | None] = {}
        self._in_force: dict[int, bytes] = {}  # by round

    def completed(self, record: Round) -> None:
        expected = leaders(self.scene.reference)[record.number]
        origin = record.hyper_from
        found = None if origin is None else (origin.rank, origin.step)
        assert found == expected, f"round {record.number} has those of (rank, step) {found}, not of {expected}"
        if origin is not None:
            self._in_force[record.number] = self.scene.arrival(origin).hyper
        elif record.number - 1 in self._in_force:
            self._in_force[record.number] = self._in_force[record.number - 1]

    def applied(self, life: Life, result: Result) -> None:
        expected = self._in_force.get(result.round.number, life.replica.hyper)
        assert life.replica.hyper == expected, f"{life} applied round {result.round.number} with {life.replica.hyper!r}"
