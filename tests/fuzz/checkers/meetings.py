"""Rule 12: a synchronisation ends when all with data left are in it, at one version, with equal buffers; so does
`finish`, when nobody has data left and nothing is pending."""

from __future__ import annotations

from outpace.protocol.events import Event, Outcome
from tests.fuzz.checkers.base import Checker
from tests.fuzz.lives import AT_THE_END, Life
from tests.fuzz.models import fingerprint_of_buffers
from tests.fuzz.watch import Scene


class Meetings(Checker):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._buffers: dict[int, str] = {}  # of whoever left a meeting first

    def event(self, event: Event, outcome: Outcome) -> None:
        sync, reference = self.ledger.sync, self.scene.reference
        found = (sync.generation, sync.version, sync.ranks)
        due = (reference.sync_generation, reference.sync_version, reference.sync_ranks)
        assert found == due, f"the last synchronisation (number, version, ranks) is {found}, by the log {due}"

    def met(self, life: Life, place: int) -> None:
        reference = self.scene.reference
        if place == AT_THE_END:
            assert reference.ended, f"{life} left finish() before all had finished"
            assert life.replica.version == reference.open, f"{life} left finish() at version {life.replica.version}"
        else:
            assert reference.sync_generation > place, f"{life} left synchronisation {place} before all were in it"
            assert life.replica.version >= reference.sync_version, f"{life} left synchronisation {place} too early"
        mine = fingerprint_of_buffers(life.replica)
        assert self._buffers.setdefault(place, mine) == mine, f"{life} left meeting {place} with other buffers"
