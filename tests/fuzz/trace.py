"""The events of a run with one column per rank. Owns how it reads; keeps the last ones, or all."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from outpace.engines.virtual.clock import Clock
from outpace.interface import Result
from outpace.protocol.events import Arrive, Attempt, Claim, Done, Event, Join, Outcome, Refuse, Seal, Snapshot
from tests.fuzz.lives import KILLED, Life

WIDTH = 14


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

    def event(self, event: Event, outcome: Outcome) -> None:
        rank = -1 if isinstance(event, Refuse) else getattr(event, "rank", -1)
        self._add(rank, _word(event), outcome.reason)

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
    name, detail = type(event).__name__.lower(), ""
    if isinstance(event, Join):
        detail = f"{event.incarnation}"
    elif isinstance(event, Arrive):
        detail = f"{event.step} v{event.version}"
    elif isinstance(event, Seal):
        detail = f"{event.number}"
    elif isinstance(event, (Attempt, Done)):
        detail = f"{event.round}.{event.attempt}"
    elif isinstance(event, Refuse):
        detail = f"{event.round}"
    elif isinstance(event, Claim):
        detail = f"{event.buffer}"
    elif isinstance(event, Snapshot):
        detail = f"v{event.version}"
    return f"{name} {detail}".strip()
