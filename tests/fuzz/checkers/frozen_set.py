"""Rules 2 and 5: the set of a round is exactly what precedes its seal in the log, and never changes after."""

from __future__ import annotations

from outpace.protocol.events import Arrive, Event, Outcome, Refuse
from outpace.protocol.round import Round
from tests.fuzz.checkers.base import Checker
from tests.fuzz.watch import Key, Scene


class FrozenSet(Checker):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._pending: set[Key] = set()
        self._frozen: dict[int, set[Key]] = {}
        self._refused: set[Key] = set()

    def event(self, event: Event, outcome: Outcome) -> None:
        if isinstance(event, Arrive) and not outcome.is_ignored and self._is_taken(event):
            self._pending.add((event.rank, event.incarnation, event.step))
        if isinstance(event, Refuse) and not outcome.is_ignored:
            self._refused.add((event.rank, event.incarnation, event.step))
        while len(self._frozen) < self.ledger.round:
            self._frozen[len(self._frozen)] = self._pending
            self._pending = set()
        for record in (*self.ledger.completed.values(), *filter(None, [self.ledger.reducing])):
            self._compare(record)

    def _is_taken(self, event: Arrive) -> bool:
        open_round = len(self._frozen)  # the ledger may have sealed it with this very event
        lag, rules = open_round - event.version, self.scene.rules
        return lag == 0 or (rules.late != "drop" and lag <= rules.max_staleness)

    def _compare(self, record: Round) -> None:
        expected = self._frozen[record.number]
        found = {c[:3] for c in (*record.contributions, *record.refused)}
        assert found == expected, f"before the seal of round {record.number} came {expected}, in it are {found}"
        refused = {c[:3] for c in record.refused}
        assert refused == expected & self._refused, f"round {record.number} left out {refused}, not {self._refused}"
