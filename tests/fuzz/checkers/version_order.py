"""Rules 7 and 9: every rank applies every round in order, or adopts a snapshot forwards; versions never go back."""

from __future__ import annotations

from outpace.interface import Result
from tests.fuzz.checkers.base import Checker
from tests.fuzz.lives import Life
from tests.fuzz.watch import Scene


class VersionOrder(Checker):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._last: dict[Life, int] = {}  # a rank that has begun is at this version

    def applying(self, life: Life, result: Result) -> None:
        last, number = self._last.get(life), result.round.number
        assert last is not None, f"{life} applies round {number} before it has the common weights"
        assert last == number, f"{life} applies round {number} to version {last}"
        assert number < self.ledger.complete, f"{life} applies round {number}, which is not complete"

    def applied(self, life: Life, result: Result) -> None:
        self._go_to(life, result.round.number + 1)

    def adopted(self, life: Life, before: int) -> None:
        version = life.replica.version
        forwards = version > before if life in self._last else version >= before
        assert forwards, f"{life} at version {before} adopted a snapshot of version {version}"
        self._go_to(life, version)

    def _go_to(self, life: Life, version: int) -> None:
        assert life.replica.version == version, f"{life} says {life.replica.version} where version {version} is due"
        assert version <= self.ledger.complete, f"{life} is at version {version}, {self.ledger.complete} are complete"
        self._last[life] = version
