"""Rule 8, G1: each accepted contribution is in exactly one round, or was dropped or refused once."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.protocol.events import Event, Outcome
from outpace.protocol.round import Round
from tests.fuzz.checkers.base import Checker
from tests.fuzz.lives import Life
from tests.fuzz.watch import Scene
from tests.support.protocol.checkers import Audit


class ExactlyOnce(Checker):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._audit = Audit()

    def event(self, event: Event, outcome: Outcome) -> None:
        self._audit.note(self.ledger, event, outcome)

    def sealed(self, record: Round) -> None:
        self._audit.check(self.ledger)

    def completed(self, record: Round) -> None:
        self._audit.check(self.ledger)

    def end(self, lives: Sequence[Life]) -> None:
        self._audit.check(self.ledger)
        self._audit.check_order(resumed=False)
