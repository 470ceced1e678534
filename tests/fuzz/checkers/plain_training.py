"""Rule 7: a replica is what plain torch makes of the rounds' averaged gradients, clip factors and hyper-parameters.

One more replica is trained alone, by the plainest code, from the first snapshot on. All ranks must equal it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import torch

from outpace.interface import Result
from outpace.protocol.events import Event, Outcome, Snapshot
from outpace.protocol.round import Round
from outpace.replica.replica import OptimizerReplica
from tests.fuzz.checkers.base import Checker
from tests.fuzz.lives import Life
from tests.fuzz.models import fingerprint
from tests.fuzz.watch import Scene


class PlainTraining(Checker):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._alone: OptimizerReplica = scene.new_replica()
        self._expected: list[str] = []  # by version
        self._usual: float | None = None  # size of a round: the mean of all, recent ones counting more

    def event(self, event: Event, outcome: Outcome) -> None:
        if isinstance(event, Snapshot) and not self._expected and not outcome.is_ignored:
            first = self.scene.tensors.snapshots[event.buffer]
            self._alone.adopt(first.made_of([t.clone() for t in first.everything]), 0, is_beginning=True)
            self._expected.append(fingerprint(self._alone))

    def completed(self, record: Round) -> None:
        arrivals = [self.scene.arrival(c) for c in record.contributions]
        if record.hyper_from is not None:
            self._alone.hyper = self.scene.arrival(record.hyper_from).hyper
        if not record.void:
            self._take_hyper_parameters()
            self._shorten(min(1.0, sum(record.weights or [1.0] * len(arrivals)) / record.world))
            present = [any(mask) for mask in zip(*(a.present for a in arrivals), strict=True)]
            self._step(self.scene.tensors.result(record).gradients, record.clip, present)
        self._expected.append(fingerprint(self._alone))

    def _step(self, gradients: Sequence[torch.Tensor], clip: float, present: list[bool]) -> None:
        own = [gradient.clone() for gradient in gradients]
        if clip != 1.0:
            torch._foreach_mul_(own, clip)  # for a half type, other bits than a plain product
        for parameter, gradient, is_there in zip(self._alone.parameters, own, present, strict=True):
            parameter.grad = gradient if is_there else None
        self._alone.inner.step()

    def _take_hyper_parameters(self) -> None:
        for group, values in zip(self._alone.inner.param_groups, json.loads(self._alone.hyper), strict=True):
            group.update({k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})

    def _shorten(self, size: float) -> None:
        """A round of few ranks decays weights by less. One of less than half the usual size is a shorter step, too, of
        an optimizer with momentum, and any such round is of Adam, if the rest of the work comes in later ones."""
        usual = size if self._usual is None else self._usual
        stride = size / usual if 0 < size < 0.5 * usual else 1.0
        self._usual = usual + 0.1 * (size - usual)
        for group in self._alone.inner.param_groups:
            length = stride if group.get("momentum", 1.0) else 1.0
            length *= math.sqrt(size) if "betas" in group and self.scene.rules.late != "drop" and size else 1.0
            group["lr"] *= length
            group["weight_decay"] *= (size or 1.0) / length

    def applied(self, life: Life, result: Result) -> None:
        self._compare(life)

    def adopted(self, life: Life, before: int) -> None:
        self._compare(life)

    def _compare(self, life: Life) -> None:
        version = life.replica.version
        same = version < len(self._expected) and life.fingerprint == self._expected[version]
        assert same, f"{life} is at version {version} what plain training is not"
