"""The optimizers of one rank: while it waits in one of them, it cannot contribute to the others.

GANs and actor-critic methods have two or three. Each has a log of its own, which would expect this rank to arrive while
it waits in another optimizer, perhaps for a rank that waits here: a deadlock. So a rank that has waited a while appends
`Away` to the logs of its other optimizers. When the wait is over, any rank that sees so appends `Back`.
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

PATIENCE_S = 0.1  #: most waits are shorter, and events between hosts are not free


class Siblings:
    def __init__(self) -> None:
        self._engines: dict[int, Engine] = {}  # by number
        self.has_several = False
        self._made = 0
        self._since: float | None = None  # when this rank began to wait, or last saw a round being reduced

    def add(self, opened: Opened) -> Opened:
        """Makes a new engine and the existing ones known to each other."""
        engine = opened.engine
        engine.siblings, engine.number = self, self._made
        self._engines[engine.number] = engine
        self._made += 1
        self.has_several = len(self._engines) > 1
        return opened._replace(drive=partial(engine.run_call, opened.drive))

    def run_call(self, engine: Engine, drive: Drive, *call: Any) -> Any:
        """Runs a call on one engine, then says in the others' logs that this rank is back."""
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
        """An engine has ended."""
        self._engines = {number: its for number, its in self._engines.items() if its is not engine}
        self.has_several = len(self._engines) > 1

    def unfinished_besides(self, engine: Engine) -> int:
        """The other optimizers that this rank has not finished, as a bit mask."""
        numbers = {number % MASK_BITS for number, its in self._engines.items() if its is not engine}
        return sum(1 << bit for bit in numbers)

    @contextmanager
    def opening(self) -> Iterator[None]:
        """While another optimizer is made, which waits for all ranks; some may still train with the existing ones."""
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
        """Called while this rank waits in an engine: after a while says in the others that it is away. Returns in how
        many seconds to call again; None if it does not matter."""
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
            # averaging strategies wait for certain ranks only, so just a synchronisation of all can deadlock
            if other is not engine and (is_meeting or other.rules.publishes is None):
                self._say_away(other, engine.number, engine.has_left)
        return None

    async def help_others(self, engine: Engine) -> None:
        """Called while this rank waits in an engine, and after each call: a rank that joins one of the others, which
        may be idle here, may need a snapshot."""
        for other in [its for its in self._engines.values() if its is not engine]:
            other.look()
            if other.replay.is_needed_here():
                await other.replay.write_overdue_snapshot()

    def _say_away(self, engine: Engine, number: int, is_at_end: bool) -> None:
        engine.look()
        if engine.rank not in engine.ledger.members.away and not engine.has_left:
            engine.log.append(Away(engine.rank, engine.incarnation, number, is_at_end))

    def _say_back(self, other: Engine, number: int) -> None:
        """Speaks also for ranks that have not noticed yet that their wait is over: this one may need them at once."""
        other.look()
        members, engine = other.ledger.members, self._engines.get(number)
        for member in [members.by_rank[rank] for rank in sorted(members.away)]:
            is_own = member.rank == other.rank
            is_over = is_own or (engine is not None and not engine.ledger.is_waiting(member.rank))
            if member.away_in == number and is_over:
                other.log.append(Back(member.rank, member.incarnation))
                if is_own and other.rules.publishes is not None:
                    other.go_on_from(other.steps)
