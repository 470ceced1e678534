"""Rule 8, G5: nothing older than `max_staleness` is applied, and nothing younger is dropped for its age."""

from __future__ import annotations

from outpace.protocol.events import Arrive, Event, Outcome, OutcomeKind
from outpace.protocol.round import Round
from tests.fuzz.checkers.base import Checker


class Staleness(Checker):
    def event(self, event: Event, outcome: Outcome) -> None:
        if isinstance(event, Arrive) and not outcome.is_ignored:
            too_late = self.scene.reference.given[-1].round is None
            what = f"rank {event.rank} step {event.step} of version {event.version} was {outcome.reason}"
            assert (outcome.kind is OutcomeKind.DROPPED) == too_late, what

    def completed(self, record: Round) -> None:
        bound = 0 if self.scene.rules.late == "drop" else self.scene.rules.max_staleness
        for c in record.contributions:
            late_by = record.number - self.scene.arrival(c).event.version
            assert 0 <= late_by <= bound, f"round {record.number} includes {c[:3]}, late by {late_by} of {bound}"
            assert c.late == (late_by > 0), f"{c[:3]} is late by {late_by} and recorded as late={c.late}"
