"""Rule 7, G2: at equal version weights, optimizer state and hyper-parameters are bit-identical on all ranks."""

from __future__ import annotations

from outpace.interface import Result
from tests.fuzz.checkers.base import Checker
from tests.fuzz.lives import Life
from tests.fuzz.watch import Scene


class Agreement(Checker):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._first: dict[int, tuple[str, str]] = {}  # version -> fingerprint, and whose it was

    def applied(self, life: Life, result: Result) -> None:
        self._compare(life)

    def adopted(self, life: Life, before: int) -> None:
        self._compare(life)

    def _compare(self, life: Life) -> None:
        first, whose = self._first.setdefault(life.replica.version, (life.fingerprint, str(life)))
        assert life.fingerprint == first, f"{life} and {whose} differ at version {life.replica.version}"
