"""Rule 2, G7: a record that no longer applies changes nothing, whoever appends it; nor does one of a former life."""

from __future__ import annotations

from outpace.protocol.events import Event, Kind
from tests.fuzz.checkers.base import Checker
from tests.fuzz.watch import Scene

AGAIN = (Kind.CLAIM, Kind.SNAPSHOT)  #: a rank may say these again
BY_ITSELF = (Kind.ARRIVE, Kind.SYNC, Kind.FINISH, Kind.DEAD, Kind.CLAIM, Kind.SNAPSHOT)  #: about the life it names


class OldRecords(Checker):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._seen: set[Event] = set()
        self._current: dict[int, int] = {}  # rank -> its newest incarnation

    def event(self, event: Event, reason: str) -> None:
        record = event._replace(time_ns=0, value=0.0)
        is_ignored = reason.startswith("ignored")
        assert is_ignored or record.kind in AGAIN or record not in self._seen, f"{record} happened twice: {reason}"
        self._seen.add(record)
        newest = self._current.setdefault(event.rank, event.incarnation)
        is_old = event.kind in BY_ITSELF and event.incarnation < newest
        assert is_ignored or not is_old, f"rank {event.rank}'s former life was heard: {reason}"
        self._current[event.rank] = max(newest, event.incarnation)
