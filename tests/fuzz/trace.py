"""The events of a run with one column per rank. Owns how it reads; keeps the last ones, or all."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from outpace.engines.virtual.clock import Clock
from outpace.interface import Result
from outpace.protocol.events import Event, Kind
from tests.fuzz.lives import KILLED, Life

WIDTH = 14
OF_NOBODY = (Kind.SEAL, Kind.ATTEMPT, Kind.REFUSE, Kind.DONE)


class Line(NamedTuple):
    """Something that happened, to a rank or (-1) to all."""

    time_ns: int
    rank: int
    what: str
    reason: str


class Trace:
    """Watches a run and remembers."""

    def __init__(self, clock: Clock, ranks: int, keep: int | None = 40) -> None:
        self._clock = clock
        self._ranks = ranks
        self._lines: deque[Line] = deque(maxlen=keep)

    def event(self, event: Event, reason: str) -> None:
        rank = -1 if event.kind in OF_NOBODY else event.rank
        self._add(rank, _word(event), reason)

    def fault(self, rank: int, what: str) -> None:
        self._add(rank, f"*{what}*", "")

    def applied(self, life: Life, result: Result) -> None:
        self._add(life.rank, f"is at v{life.replica.version}", "void" if result.round.void else "")

    def adopted(self, life: Life, before: int) -> None:
        self._add(life.rank, f"adopts v{life.replica.version}", f"was at version {before}")

    def ended(self, life: Life) -> None:
        if life.fate != KILLED:
            self._add(life.rank, "*ends*", life.fate)

    def render(self) -> str:
        """All that is remembered."""
        ranks = [f"rank {rank}" for rank in range(self._ranks)]
        head = f"{'ms':>11}  " + "".join(f"{name:<{WIDTH}}" for name in ["round", *ranks]) + "what it did"
        return "\n".join([head, *map(self._render, self._lines)])

    def _render(self, line: Line) -> str:
        before = " " * WIDTH * (line.rank + 1)
        after = " " * max(1, WIDTH * (self._ranks - line.rank) - len(line.what))
        return f"{line.time_ns / 1e6:11.3f}  {before}{line.what}{after}{line.reason}".rstrip()

    def _add(self, rank: int, what: str, reason: str) -> None:
        self._lines.append(Line(self._clock.now_ns, rank, what, reason))


def _word(event: Event) -> str:
    name = Kind(event.kind).name.lower()
    detail = {
        Kind.JOIN: f"{event.incarnation}",
        Kind.ARRIVE: f"{event.step} v{event.round}",
        Kind.SEAL: f"{event.round}",
        Kind.ATTEMPT: f"{event.round}.{event.attempt}",
        Kind.REFUSE: f"{event.round}",
        Kind.DONE: f"{event.round}.{event.attempt}",
        Kind.CLAIM: f"{event.place}",
        Kind.SNAPSHOT: f"v{event.round}",
    }.get(Kind(event.kind), "")
    return f"{name} {detail}".strip()
