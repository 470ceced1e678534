"""The events of the log, one type for each kind, and their outcomes. Knows nothing of how they are stored.

`time_ns` is when an event was appended, on a clock common to all ranks.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import partial
from typing import NamedTuple


class Join(NamedTuple):
    """A rank, in this incarnation, becomes a member."""

    rank: int
    incarnation: int
    time_ns: int = 0


class Arrive(NamedTuple):
    """A row is completely written: a contribution."""

    rank: int
    incarnation: int
    step: int  #: number of the contribution on its rank
    version: int  #: at which the gradient was computed
    row: int
    samples: float = 1.0
    planned: float = 1.0  #: samples if its rank had finished everything
    pieces: int = 1  #: how many micro-batches the row is the sum of
    is_part: bool = False  #: whether more may be added to it
    covered: int = 0  #: how many of the items its rank drew from the pool are in this and earlier contributions
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
    """A contribution to the sealed round is not finite, and is left out."""

    rank: int
    incarnation: int
    step: int
    round: int
    time_ns: int = 0


class Done(NamedTuple):
    """The sealed round's result lies in its slot, on every living host."""

    host: int  #: which appended this, for all
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
    generation: int  #: number of the synchronisation it enters
    resume: int = 0  #: one more than the round of the checkpoint it brings; 0 for none
    steps: int = 0  #: its local steps so far
    covered: int = 0  #: how many of the items it drew from the pool are in its steps
    unfinished: int = 0  #: the rank's other unfinished optimizers, as a bit mask
    time_ns: int = 0


class Finish(NamedTuple):
    """A rank has no more data."""

    rank: int
    incarnation: int
    ends_process: bool = False
    time_ns: int = 0


class Away(NamedTuple):
    """A rank waits in another of its optimizers, and cannot contribute here until that wait is over."""

    rank: int
    incarnation: int
    optimizer: int  #: the one it waits in, counted in the order they were made
    is_at_end: bool = False  #: whether it waits there in `finish`
    time_ns: int = 0


class Back(NamedTuple):
    """That wait is over. Appended by any rank that notices."""

    rank: int
    incarnation: int
    time_ns: int = 0


class Dead(NamedTuple):
    """A rank, in this incarnation, has died."""

    rank: int
    incarnation: int
    time_ns: int = 0


class Claim(NamedTuple):
    """A rank is about to write a snapshot into a buffer, or to empty it."""

    rank: int
    incarnation: int
    buffer: int  #: a number beyond the last buffer ends its previous claim
    time_ns: int = 0


class Snapshot(NamedTuple):
    """That snapshot is complete."""

    rank: int
    incarnation: int
    buffer: int
    version: int
    position: int  #: log position of the ledger in it
    is_anew: bool = False  #: whether its weights were loaded, not trained
    has_base: bool = True  #: whether it includes what is not trained: frozen parameters and buffers
    time_ns: int = 0


class Publish(NamedTuple):
    """A rank's weights lie in its next row, for others to read."""

    rank: int
    incarnation: int
    iteration: int
    generation: int
    reader_hosts: int = 0  #: a set of hosts as a bit mask, see `hosts.address`
    covered: int = 0  #: how many of the items its rank drew from the pool are in these weights
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
    """A rank sends a number to all others."""

    rank: int
    incarnation: int
    step: int
    index: int  # type: ignore[assignment]
    value: float
    time_ns: int = 0


class Withdraw(NamedTuple):
    """A rank takes its published weights back: no rank may swap with it until it publishes again."""

    rank: int
    incarnation: int
    generation: int
    time_ns: int = 0


class Agent(NamedTuple):
    """A host's agent starts, under a new number: the agents form a new group."""

    host: int
    number: int
    time_ns: int = 0


class Gone(NamedTuple):
    """A host is given up, with all its ranks and their contributions to open rounds."""

    host: int
    number: int  #: of its agent
    time_ns: int = 0


class Commit(NamedTuple):
    """A host's inbox is in the log up to here."""

    host: int
    life: int  #: sequence number of the host's start: each start has an inbox of its own
    inbox: int  #: how many bytes of it
    time_ns: int = 0


class Draw(NamedTuple):
    """A rank takes the next items of an epoch from the pool of data."""

    rank: int
    incarnation: int
    pool: int
    epoch: int
    total: int  #: items of that epoch
    digest: int  #: of everything that determines their order
    items: int  #: how many; 0 only gives back
    kept: int = -1  #: gives back all items it drew beyond the first `kept`; -1 gives back none
    speed: float = 0.0  #: items per second that it computes; 0 if unknown, or if its speed should not matter
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
    """Events that are not contributions are only TAKEN or IGNORED."""

    TAKEN = auto()  #: it took effect
    ON_TIME = auto()  #: in the open round, or the open published iteration
    COUNTED = auto()  #: late, but in the open round and part of its quorum
    CARRIED = auto()  #: late, and included in the open round
    PART = auto()  #: in the open round, and more may be added to it
    DROPPED = auto()  #: recorded, but never applied
    TOO_LATE = auto()  #: not accepted: the round with its earlier pieces is sealed
    REPEATED = auto()  #: not accepted: it arrived before
    IGNORED = auto()  #: it no longer applies
    UNKNOWN = auto()  #: it was read and cut from the log before its outcome could be seen
    UNREAD = auto()  #: not in the log yet; only in simulated time


class Outcome(NamedTuple):
    kind: OutcomeKind
    reason: str
    round: int = -1  #: the one that a contribution is in

    @property
    def is_ignored(self) -> bool:
        """Whether the event changed nothing."""
        return self.kind in (OutcomeKind.IGNORED, OutcomeKind.REPEATED)


taken = partial(Outcome, OutcomeKind.TAKEN)


def ignored(reason: str) -> Outcome:
    """An outcome whose reason begins with "ignored": in logs and reports it stands alone."""
    return Outcome(OutcomeKind.IGNORED, f"ignored: {reason}")
