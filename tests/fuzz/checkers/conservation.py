"""Rules 8 and 10, G1: a round's result is the sum of its contributions, as it weighs them, over its divisor, and
nothing is lost in all.

Recomputed in double precision from copies made at arrival. Set and divisor are those of the reference model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from outpace.protocol.round import Round
from tests.fuzz.checkers.base import Checker
from tests.fuzz.lives import Life
from tests.fuzz.watch import Scene
from tests.support.protocol.reference import Given, Sealed

Values = list[np.ndarray[Any, Any]]


class Conservation(Checker):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        entries = scene.tensors.vector.entries
        self._eps = [torch.finfo(entry.dtype).eps for entry in entries]
        self._weights: dict[tuple[int, int, int], float] = {}  # as the rounds recorded them
        self._total: Values = [np.zeros(entry.shape) for entry in entries]
        self._size: Values = [np.zeros(entry.shape) for entry in entries]

    def completed(self, record: Round) -> None:
        if record.void:
            return
        sealed = next(s for s in self.scene.reference.sealed if s.number == record.number)
        given = [g for g in self.scene.reference.entered(record.number) if not g.refused]
        for c, weight in zip(record.contributions, record.weights, strict=False):
            self._weights[c.rank, c.incarnation, c.step] = weight
        divisor = self._divisor(sealed, given)
        result = [g.double().numpy() for g in self.scene.tensors.result(record).gradients]
        for index, found in enumerate(result):
            terms = [self._weight(g) * self.scene.arrivals[g.key].values[index] for g in given]
            size = np.sum(np.abs(terms), axis=0)
            error = np.abs(found * divisor - np.sum(terms, axis=0))
            assert (error <= self._rounding(index) * size + 1e-30).all(), (
                f"round {record.number} is not the sum of {[g.key for g in given]} over {divisor}"
            )
            self._total[index] += found * divisor
            self._size[index] += size

    def end(self, lives: Sequence[Life]) -> None:
        """Over the whole run: all results together are all contributions without the pending and the dropped."""
        void = {s.number for s in self.scene.reference.sealed if s.void or not s.complete}
        lost = {None, self.scene.reference.open, *void}
        kept = [g for g in self.scene.reference.given if g.round not in lost and not g.refused]
        for index, total in enumerate(self._total):
            given = sum(self._weight(g) * self.scene.arrivals[g.key].values[index] for g in kept)
            bound = self._rounding(index) * self._size[index] + 1e-30
            assert (np.abs(total - given) <= bound).all(), "the results together are not the contributions together"

    def _weight(self, given: Given) -> float:
        samples = self.scene.arrivals[given.key].event.samples if self.scene.rules.normalise == "samples" else 1.0
        return samples * self._weights.get(given.key, 1.0)

    def _divisor(self, sealed: Sealed, given: list[Given]) -> float:
        if self.scene.rules.normalise == "world":
            return sealed.world
        return sum(map(self._weight, given)) or 1.0

    def _rounding(self, index: int) -> float:
        return 4 * self.scene.rules.world * self._eps[index]
