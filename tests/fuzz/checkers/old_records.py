"""Rule 2, G7: a record that no longer applies changes nothing, whoever appends it; nor does one of a former life."""

from __future__ import annotations

from outpace.protocol.events import Arrive, Claim, Dead, Done, Draw, Event, Finish, Join, Outcome, Snapshot, Sync
from tests.fuzz.checkers.base import Checker
from tests.fuzz.watch import Scene

AGAIN = (Claim, Draw, Snapshot)  #: a rank may say these again
BY_ITSELF = (Arrive, Sync, Finish, Dead, Claim, Draw, Snapshot)  #: about the life it names


class OldRecords(Checker):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._seen: set[tuple[type, Event]] = set()
        self._current: dict[int, int] = {}  # rank -> its newest incarnation

    def event(self, event: Event, outcome: Outcome) -> None:
        record = event._replace(time_ns=0)
        if isinstance(record, Done):
            record = record._replace(clip=1.0, void=False)
        key = (type(record), record)
        is_first = isinstance(event, AGAIN) or key not in self._seen
        assert outcome.is_ignored or is_first, f"{record} happened twice: {outcome.reason}"
        self._seen.add(key)
        if isinstance(event, (Join, *BY_ITSELF)):
            newest = self._current.setdefault(event.rank, event.incarnation)
            is_old = isinstance(event, BY_ITSELF) and event.incarnation < newest
            assert outcome.is_ignored or not is_old, f"rank {event.rank}'s former life was heard: {outcome.reason}"
            self._current[event.rank] = max(newest, event.incarnation)
