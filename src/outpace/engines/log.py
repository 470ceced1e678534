"""The log as one rank sees it: what an engine reads, says and waits for. One of the two things an engine is given.

Everything that ranks decide together is an event in the log, and the ledger is what all events so far add up to. A log
orders events and lets a rank rest until there may be more of them. It never calls the engine.

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
    """One wait of one rank: why, for what, and since when."""

    purpose: str  #: for error messages: "for the quorum of round 3"
    began_s: float
    counted_s: float  #: up to when it is in `waited_s`
    version: int | None = None  #: it ends when so many rounds are complete ...
    rank: int | None = None  #: ... or with something this rank does to its published weights; else with any news
    looked_s: float = 0.0  #: when this rank last looked out
    asleep_s: float = 0.0  #: this rank itself stood still for so long


class Log(Protocol):
    """One rank's log."""

    incarnation: int  #: under which number this rank speaks; grows with every start

    @property
    def ledger(self) -> Ledger:
        """What all events read so far add up to."""

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
        """Adds an event and reads on until it is in the ledger. Returns what became of it."""

    def say(self, event: Event) -> None:
        """Adds an event, and does not wait until it is in the ledger."""

    def report_deaths(self) -> bool:
        """Looks who lives, as every wait does. True if somebody was found dead."""

    def is_seal_due(self) -> bool:
        """Whether the open round's grace is over and it is for this rank to end it."""

    def begin_wait(self, purpose: str, version: int | None, rank: int | None) -> Wait:
        """From here on this rank waits."""

    def check(self) -> None:
        """Raises if no wait can come to a good end: `BelowQuorum`, or the agent has given up."""

    async def rest(self, wait: Wait, at_most_s: float | None) -> None:
        """Sleeps until there may be news of what is waited for, at most so long, and reads it. Looks who lives.

        Raises `TimedOut` when the wait takes too long.
        """

    def end_wait(self, wait: Wait) -> None:
        """That wait is over, one way or another, or goes on for another rank."""

    def is_long_since(self, position: int) -> bool:
        """Whether so much was added since that it is time to cut the log, or a rank that joins reads for long."""

    def cut(self, position: int, buffer: int) -> None:
        """The snapshot in that buffer is the latest: whoever needs what lies before the position adopts it."""
