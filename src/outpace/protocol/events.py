"""The events of the log. Owns their names and fields; knows nothing of how they are stored."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """What happened."""

    JOIN = 1  #: a rank's incarnation becomes a member
    ARRIVE = 2  #: a row is completely written: a contribution
    SEAL = 3  #: grace is over, the open round's set is frozen
    ATTEMPT = 4  #: the sealed round is reduced again, into another slot
    REFUSE = 5  #: a contribution of the sealed round is not finite
    DONE = 6  #: the sealed round's result lies in its slot
    SYNC = 7  #: a rank waits in `synchronize`
    FINISH = 8  #: a rank has no more data
    DEAD = 9  #: a rank's incarnation no longer lives
    CLAIM = 10  #: a rank begins to write a snapshot into a buffer
    SNAPSHOT = 11  #: that snapshot is complete


class Event(NamedTuple):
    """One record. Fields a kind does not use stay zero."""

    kind: int
    rank: int
    incarnation: int = 0
    step: int = 0  #: the rank's own step; SYNC: the generation it enters; SNAPSHOT: log position it carries
    round: int = 0  #: the round meant; ARRIVE: the version the gradient was computed at
    place: int = 0  #: row, slot or buffer
    attempt: int = 0
    samples: float = 0.0
    value: float = 0.0  #: DONE: clip factor, NaN when the result overflowed
    time_ns: int = 0
