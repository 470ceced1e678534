"""Rule 11: a parameter that no contributor had a gradient for stays untouched, and all do in a void round."""

from __future__ import annotations

from outpace.interface import Result
from tests.fuzz.checkers.base import Checker
from tests.fuzz.lives import Life
from tests.fuzz.models import bits
from tests.fuzz.watch import Scene


class PresentMask(Checker):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._before: dict[int, bytes] = {}  # of the parameters that must not change, by their place

    def applying(self, life: Life, result: Result) -> None:
        masks = [self.scene.arrival(c).present for c in result.round.contributions]
        count = len(life.replica.parameters)
        present = [not result.round.void and any(mask[i] for mask in masks) for i in range(count)]
        self._before = {i: _everything(life, i) for i in range(count) if not present[i]}

    def applied(self, life: Life, result: Result) -> None:
        for index, before in self._before.items():
            same = _everything(life, index) == before
            assert same, f"{life} changed parameter {index} in round {result.round.number}, where nobody had a gradient"


def _everything(life: Life, index: int) -> bytes:
    parameter = life.replica.parameters[index]
    state = life.replica.inner.state.get(parameter, {})
    return bits(parameter) + b"".join(bits(v) for v in state.values() if hasattr(v, "detach"))
