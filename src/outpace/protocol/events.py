"""The events of the log, one type for each kind, and what becomes of one. Knows nothing of how they are stored.

`time_ns` is when an event was appended, by the clock of all ranks; the appender stamps it.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import partial
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
    covered: int = 0  #: the first so many items that its rank drew from the pool are in this or earlier ones
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
    """The sealed round's result lies in its slot, on every living host."""

    host: int  #: that says so, for all
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
    covered: int = 0  #: the first so many items that it drew from the pool are in its steps
    unfinished: int = 0  #: the rank's other optimizers that it has not finished, as a bit mask
    time_ns: int = 0


class Finish(NamedTuple):
    """A rank has no more data."""

    rank: int
    incarnation: int
    ends_process: bool = False
    time_ns: int = 0


class Away(NamedTuple):
    """A rank waits in another of its optimizers, and cannot contribute here before that wait is over."""

    rank: int
    incarnation: int
    optimizer: int  #: that it waits in, counted in the order they were made
    is_at_end: bool = False  #: it waits there in `finish`
    time_ns: int = 0


class Back(NamedTuple):
    """That wait is over. Whoever sees that says so."""

    rank: int
    incarnation: int
    time_ns: int = 0


class Dead(NamedTuple):
    """A rank's incarnation no longer lives."""

    rank: int
    incarnation: int
    time_ns: int = 0


class Claim(NamedTuple):
    """A rank begins to write a snapshot into a buffer, or to empty it."""

    rank: int
    incarnation: int
    buffer: int  #: a number that no buffer has ends its last claim
    time_ns: int = 0


class Snapshot(NamedTuple):
    """That snapshot is complete."""

    rank: int
    incarnation: int
    buffer: int
    version: int
    position: int  #: in the log, of the ledger it carries
    is_anew: bool = False  #: of weights that were loaded
    has_base: bool = True  #: with what is not trained, too: frozen parameters and buffers
    time_ns: int = 0


class Publish(NamedTuple):
    """A rank's weights lie in its next row, for others to read."""

    rank: int
    incarnation: int
    iteration: int
    generation: int
    reader_hosts: int = 0  #: a set of hosts as a bit mask, see `hosts.address`
    covered: int = 0  #: the first so many items that its rank drew from the pool are in these weights
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


class Commit(NamedTuple):
    """A host's inbox is in the log up to here."""

    host: int
    life: int  #: sequence number of the host's start: each has an inbox of its own
    inbox: int  #: bytes of it
    time_ns: int = 0


class Draw(NamedTuple):
    """A rank takes the next items of an epoch from the pool of data."""

    rank: int
    incarnation: int
    pool: int
    epoch: int
    total: int  #: items of that epoch
    digest: int  #: of what makes their order
    items: int  #: so many; 0 only gives back
    kept: int = -1  #: all but the first so many items it drew are given back; -1 gives back none
    speed: float = 0.0  #: items that it computes in a second; 0 if unknown, or if it takes them however slow it is
    time_ns: int = 0


class Skip(NamedTuple):
    """Items of an epoch were trained on before the run began: nobody draws them."""

    pool: int
    epoch: int
    total: int
    digest: int
    start: int
    stop: int
    time_ns: int = 0


_OfRounds = Join | Arrive | Seal | Attempt | Refuse | Done | Sync | Finish | Dead | Claim | Snapshot
Event = _OfRounds | Publish | Read | Swap | Tell | Withdraw | Agent | Gone | Draw | Skip | Away | Back | Commit


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
    kind: OutcomeKind
    reason: str
    round: int = -1  #: that a contribution is in

    @property
    def is_ignored(self) -> bool:
        """Whether everything is as if the event had never been appended."""
        return self.kind in (OutcomeKind.IGNORED, OutcomeKind.REPEATED)


taken = partial(Outcome, OutcomeKind.TAKEN)


def ignored(reason: str) -> Outcome:
    """The words say so, too: in logs and reports they stand alone."""
    return Outcome(OutcomeKind.IGNORED, f"ignored: {reason}")
