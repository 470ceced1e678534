"""The log as one rank sees it: what an engine reads, appends and waits for. One of the two things an engine is given.

Everything that ranks decide together is an event in the log, and the ledger is the fold of all events so far. A log
orders events and lets a rank sleep until there may be more of them. It never calls the engine.

    arena.log.ArenaLog          shared memory of one machine
    cluster.log.ClusterLog      the same behind an agent, which orders the events of all hosts
    virtual.log.VirtualLog      simulated time
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outpace.protocol.events import Event, Outcome
from outpace.protocol.ledger import Ledger


@dataclass(slots=True)
class Wait:
    """One wait of one rank: its purpose, what ends it, and when it began."""

    purpose: str  #: for error messages: "for the quorum of round 3"
    began_s: float
    counted_s: float  #: the time until which it is included in `waited_s`
    version: int | None = None  #: it ends when this many rounds are complete ...
    rank: int | None = None  #: ... or when this rank changes its published weights; without either, with any news
    looked_s: float = 0.0  #: when this rank last checked who lives
    asleep_s: float = 0.0  #: for how long this rank itself was stopped


class Log(Protocol):
    """One rank's log."""

    incarnation: int  #: the number of this rank's start, which goes into its events

    @property
    def ledger(self) -> Ledger:
        """The fold of all events read so far."""

    @property
    def position(self) -> int:
        """How far this rank has read."""

    @property
    def waited_s(self) -> float:
        """Seconds this rank has waited for others."""

    def now_s(self) -> float:
        """Seconds on this rank's clock."""

    def look(self) -> None:
        """Reads what is new."""

    def append(self, event: Event) -> Outcome:
        """Appends an event and reads until it is in the ledger. Returns its outcome."""

    def say(self, event: Event) -> None:
        """Appends an event, without waiting until it is in the ledger."""

    def report_deaths(self) -> bool:
        """Checks which ranks live, as every wait does. True if one was found dead."""

    def is_seal_due(self) -> bool:
        """Whether the open round's grace is over and it is this rank's turn to seal it."""

    def begin_wait(self, purpose: str, version: int | None, rank: int | None) -> Wait:
        """Starts a wait of this rank."""

    def check(self) -> None:
        """Raises if waiting is pointless: `BelowQuorum`, or the agent has given up."""

    async def rest(self, wait: Wait, at_most_s: float | None) -> None:
        """Sleeps until there may be news for this wait, or for at most `at_most_s`; then reads the log and checks which
        ranks live.

        Raises `TimedOut` when the wait takes too long.
        """

    def end_wait(self, wait: Wait) -> None:
        """Ends a wait, whatever came of it; or pauses it before it continues for another rank."""

    def is_long_since(self, position: int) -> bool:
        """Whether the log has grown so much since this position that it should be cut: a joining rank reads it all."""

    def cut(self, position: int, buffer: int) -> None:
        """Cuts the log at the position of the latest snapshot, which lies in this buffer. A rank that needs anything
        earlier adopts the snapshot."""
