"""What happened in a run, in numbers. Owns the counts and the hash of all weights; decides nothing."""

from __future__ import annotations

import hashlib
from collections import Counter

from outpace.interface import Result
from outpace.protocol.events import Arrive, Draw, Event, Join, Outcome, OutcomeKind, Refuse
from outpace.protocol.round import Round
from tests.fuzz.lives import BELOW_QUORUM, Life


class Tally:
    """Watches a run and counts."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._weights = hashlib.blake2b(digest_size=12)

    @property
    def weights(self) -> str:
        """A hash of all weights of all ranks at all versions, in the order they came to be."""
        return self._weights.hexdigest()

    def event(self, event: Event, outcome: Outcome) -> None:
        self.counts["events"] += 1
        if outcome.is_ignored:
            self.counts["ignored records"] += 1
        elif isinstance(event, Join):
            self.counts["joins" if event.incarnation == 1 else "restarts"] += 1
        elif isinstance(event, Draw):
            self.counts["draws"] += 1
        elif isinstance(event, Refuse):
            self.counts["refusals"] += 1
        elif isinstance(event, Arrive) and outcome.kind is OutcomeKind.DROPPED:
            self.counts["dropped"] += 1

    def completed(self, record: Round) -> None:
        self.counts["rounds"] += 1
        self.counts["voids"] += record.void
        self.counts["carried"] += sum(c.late for c in record.contributions)

    def fault(self, rank: int, what: str) -> None:
        word, _, point = what.partition(" ")
        if word in ("crash", "pause"):
            self.counts["crashes" if word == "crash" else "pauses"] += 1
            if point and word == "crash":
                self.counts[f"crashed while {point}"] += 1

    def applied(self, life: Life, result: Result) -> None:
        self._weights.update(life.fingerprint.encode())

    def adopted(self, life: Life, before: int) -> None:
        self.counts["adoptions"] += 1
        self._weights.update(life.fingerprint.encode())

    def ended(self, life: Life) -> None:
        self.counts["ended below quorum"] += life.fate == BELOW_QUORUM
