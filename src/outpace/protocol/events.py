"""The events of the log, one type for each kind. Owns their names and fields; knows nothing of how they are stored.

`time_ns` is when an event was appended, by the clock of all ranks; the appender stamps it.
"""

from __future__ import annotations

from typing import NamedTuple


class Join(NamedTuple):
    """A rank's incarnation becomes a member."""

    rank: int
    incarnation: int
    time_ns: int = 0


class Arrive(NamedTuple):
    """A row is completely written: a contribution."""

    rank: int
    incarnation: int
    step: int  #: the rank's own
    version: int  #: that the gradient was computed at
    row: int
    samples: float = 1.0
    planned: float = 1.0  #: samples it would have had if its rank had finished everything
    pieces: int = 1  #: micro-batches that the row is the sum of
    is_part: bool = False  #: more of it may follow
    time_ns: int = 0


class Seal(NamedTuple):
    """Grace is over: the open round, or the open published iteration, is frozen."""

    number: int
    time_ns: int = 0


class Attempt(NamedTuple):
    """The sealed round is reduced again, into another slot."""

    round: int
    attempt: int
    slot: int
    time_ns: int = 0


class Refuse(NamedTuple):
    """A contribution of the sealed round is not finite."""

    rank: int
    incarnation: int
    step: int
    round: int
    time_ns: int = 0


class Done(NamedTuple):
    """The sealed round's result lies in its slot, on this host."""

    host: int
    round: int
    attempt: int
    slot: int
    clip: float = 1.0
    void: bool = False  #: the result overflowed
    time_ns: int = 0


class Sync(NamedTuple):
    """A rank waits in `synchronize`."""

    rank: int
    incarnation: int
    generation: int  #: of the synchronisation it enters
    resume: int = 0  #: one more than the round of the checkpoint it brings, 0 for none
    steps: int = 0  #: local ones so far
    time_ns: int = 0


class Finish(NamedTuple):
    """A rank has no more data."""

    rank: int
    incarnation: int
    ends_process: bool = False
    time_ns: int = 0


class Dead(NamedTuple):
    """A rank's incarnation no longer lives."""

    rank: int
    incarnation: int
    time_ns: int = 0


class Claim(NamedTuple):
    """A rank begins to write a snapshot into a buffer."""

    rank: int
    incarnation: int
    buffer: int
    time_ns: int = 0


class Snapshot(NamedTuple):
    """That snapshot is complete."""

    rank: int
    incarnation: int
    buffer: int
    version: int
    position: int  #: in the log, of the ledger it carries
    is_anew: bool = False  #: of weights that were loaded
    time_ns: int = 0


class Publish(NamedTuple):
    """A rank's weights lie in its next row, for others to read."""

    rank: int
    incarnation: int
    iteration: int
    generation: int
    reader_hosts: int = 0  #: a set of hosts as a bit mask, see `hosts.address`
    time_ns: int = 0


class Read(NamedTuple):
    """A rank has read what was published for it up to an iteration."""

    rank: int
    incarnation: int
    iteration: int
    time_ns: int = 0


class Swap(NamedTuple):
    """Two ranks' weights become the mean of both."""

    rank: int
    incarnation: int
    peer: int
    generation: int
    peer_generation: int
    time_ns: int = 0


class Tell(NamedTuple):
    """A rank tells all a number it measured."""

    rank: int
    incarnation: int
    step: int
    index: int  # type: ignore[assignment]
    value: float
    time_ns: int = 0


class Withdraw(NamedTuple):
    """A rank takes its published weights back: nobody may swap with it any more."""

    rank: int
    incarnation: int
    generation: int
    time_ns: int = 0


class Agent(NamedTuple):
    """A host's agent begins, under a new number: the agents form a new group."""

    host: int
    number: int
    time_ns: int = 0


class Gone(NamedTuple):
    """A host is given up, with all its ranks and what they have contributed."""

    host: int
    number: int  #: of its agent
    time_ns: int = 0


Event = (
    Join
    | Arrive
    | Seal
    | Attempt
    | Refuse
    | Done
    | Sync
    | Finish
    | Dead
    | Claim
    | Snapshot
    | Publish
    | Read
    | Swap
    | Tell
    | Withdraw
    | Agent
    | Gone
)
