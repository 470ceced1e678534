"""The optimizers of one rank: while it waits in one of them, it cannot contribute to the others.

GANs and actor-critic methods have two or three. Each has a log of its own, and would count this rank among those who
can still come, while it waits in another one for a rank that waits here. So a rank that has waited a while says in its
other optimizers that it is away. Whoever comes out of that wait says who is back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from outpace.protocol.events import Away, Back
from outpace.protocol.members import MASK_BITS

if TYPE_CHECKING:
    from outpace.engines.engine import Drive, Engine, Opened

PATIENCE_S = 0.1  #: most waits are over before; events between hosts are not for free


class Siblings:
    def __init__(self) -> None:
        self._engines: dict[int, Engine] = {}  # by number
        self.has_several = False
        self._made = 0
        self._since: float | None = None  # when this rank began to wait, if nothing was reduced since

    def add(self, opened: Opened) -> Opened:
        """One more, which knows the others from now on."""
        engine = opened.engine
        engine.siblings, engine.number = self, self._made
        self._engines[engine.number] = engine
        self._made += 1
        self.has_several = len(self._engines) > 1
        return opened._replace(drive=partial(engine.run_call, opened.drive))

    def run_call(self, engine: Engine, drive: Drive, *call: Any) -> Any:
        """Runs a call on one of them, and comes back to the others."""
        self._since = None
        try:
            result = drive(*call)
            drive(self.help_others, engine)
            return result
        finally:
            for other in list(self._engines.values()):
                if other is not engine:
                    self._say_back(other, engine.number)

    def remove(self, engine: Engine) -> None:
        """It has ended."""
        self._engines = {number: its for number, its in self._engines.items() if its is not engine}
        self.has_several = len(self._engines) > 1

    def unfinished_besides(self, engine: Engine) -> int:
        """The other optimizers that this rank has not finished, as a bit mask."""
        numbers = {number % MASK_BITS for number, its in self._engines.items() if its is not engine}
        return sum(1 << bit for bit in numbers)

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Another one is made, which takes all ranks. Some may still train with those that are there."""
        others = [engine for engine in self._engines.values() if engine.has_begun]
        number = self._made
        for other in others:
            self._say_away(other, number, False)
        try:
            yield
        finally:
            for other in others:
                self._say_back(other, number)

    def say_away(self, engine: Engine) -> float | None:
        """Called while this rank waits in an engine. Returns when to call again, in seconds; None for any time."""
        ledger, rank = engine.ledger, engine.rank
        if not ledger.is_waiting(rank):
            return None
        now = engine.now_s()
        if self._since is None or ledger.reducing is not None:
            self._since = now
        left = self._since + PATIENCE_S - now
        if left > 0:
            return left
        is_meeting = ledger.is_waiting(rank, is_meeting=True)
        for other in self._engines.values():
            # those who publish weights wait for certain ranks: only what all wait for can be a circle
            if other is not engine and (is_meeting or other.rules.publishes is None):
                self._say_away(other, engine.number, engine.has_left)
        return None

    async def help_others(self, engine: Engine) -> None:
        """Called while this rank waits in an engine, and after each call: who begins in another one, which may not be
        in use just now, may need a snapshot."""
        for other in [its for its in self._engines.values() if its is not engine]:
            other.look()
            if other.replay.is_needed_here():
                await other.replay.write_overdue_snapshot()

    def _say_away(self, engine: Engine, number: int, is_at_end: bool) -> None:
        engine.look()
        if engine.rank not in engine.ledger.members.away and not engine.has_left:
            engine.log.append(Away(engine.rank, engine.incarnation, number, is_at_end))

    def _say_back(self, other: Engine, number: int) -> None:
        """Also in the name of those who have not noticed yet: this rank may need them at once."""
        other.look()
        members, engine = other.ledger.members, self._engines.get(number)
        for member in [members.by_rank[rank] for rank in sorted(members.away)]:
            is_own = member.rank == other.rank
            is_over = is_own or (engine is not None and not engine.ledger.is_waiting(member.rank))
            if member.away_in == number and is_over:
                other.log.append(Back(member.rank, member.incarnation))
                if is_own and other.rules.publishes is not None:
                    other.go_on_from(other.steps)
