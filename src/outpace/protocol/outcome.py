"""What became of an event. Owns the kinds that callers branch on; the words are for people alone."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class OutcomeKind(Enum):
    """Of an event that is no contribution, only whether it took effect can be told."""

    TAKEN = auto()  #: it took effect
    ON_TIME = auto()  #: in the open round, or the open published iteration
    COUNTED = auto()  #: late, in the open round, and one of its quorum
    CARRIED = auto()  #: late, and goes with the open round
    PART = auto()  #: in the open round, and more of it may follow
    DROPPED = auto()  #: recorded as such, and never applied
    TOO_LATE = auto()  #: not taken in: the round that has its earlier pieces is sealed
    REPEATED = auto()  #: not taken in: it arrived before
    IGNORED = auto()  #: it no longer applies
    UNKNOWN = auto()  #: others have read it, and what became of it cannot be told any more
    UNREAD = auto()  #: not in the log yet; only in simulated time


class Outcome(NamedTuple):
    """What became of an event, and why."""

    kind: OutcomeKind
    reason: str
    round: int = -1  #: that a contribution is in

    @property
    def is_ignored(self) -> bool:
        """Whether everything is as if the event had never been appended."""
        return self.kind in (OutcomeKind.IGNORED, OutcomeKind.REPEATED)


def taken(reason: str) -> Outcome:
    """It took effect, and here is how."""
    return Outcome(OutcomeKind.TAKEN, reason)


def ignored(reason: str) -> Outcome:
    """The words say so, too: in logs and reports they stand alone."""
    return Outcome(OutcomeKind.IGNORED, f"ignored: {reason}")
