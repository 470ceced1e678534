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
    PUBLISH = 12  #: a rank's weights lie in its next row, for others to read
    READ = 13  #: a rank has read what was published for it up to some iteration
    SWAP = 14  #: two ranks' weights become the mean of both
    TELL = 15  #: a rank tells all a number it measured
    WITHDRAW = 16  #: a rank takes its published weights back: nobody may swap with it any more
    AGENT = 17  #: a host's agent begins, under a new number: the agents form a new group
    GONE = 18  #: a host is given up, with all its ranks and what they have contributed


class Event(NamedTuple):
    """One record. Fields a kind does not use stay zero."""

    kind: int
    rank: int  #: AGENT, GONE and DONE: the host
    incarnation: int = 0  #: AGENT and GONE: the number of the host's agent
    step: int = 0  #: the rank's own step; SYNC: the generation it enters; SNAPSHOT: log position it carries
    round: int = 0  #: the round meant; ARRIVE: the version the gradient was computed at; PUBLISH and so on: generation
    place: int = 0  #: row, slot or buffer; SWAP: the peer; SYNC: local steps so far; FINISH: 1 if its process ends
    attempt: int = 0  #: ARRIVE: `pieces_of` tells what it says
    samples: float = 0.0  #: PUBLISH: the hosts of its readers, see `hosts.address`; SNAPSHOT: 1 if of loaded weights
    value: float = 0.0  #: DONE: clip factor, NaN when the result overflowed; ARRIVE: planned samples; TELL: the number
    time_ns: int = 0


def arrival_of(pieces: int, is_part: bool) -> int:
    """What ARRIVE's `attempt` says: of how many pieces the row is the sum, and whether more of it may follow."""
    return 2 * (pieces - 1) + is_part


def pieces_of(attempt: int) -> tuple[int, bool]:
    """The inverse of `arrival_of`.

    >>> pieces_of(arrival_of(3, is_part=True))
    (3, True)
    """
    return attempt // 2 + 1, bool(attempt % 2)
