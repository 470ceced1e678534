"""The local engine: all ranks on one machine, who reduce their rounds themselves. Owns who reduces, and when."""

from __future__ import annotations

import time
from typing import Any

from outpace.engines.arena.arena_engine import ArenaEngine
from outpace.engines.arena.bell import SLICE_S, Bell
from outpace.engines.arena.holds import tag
from outpace.engines.arena.log import Log
from outpace.engines.arena.reduction import Reduction
from outpace.engines.arena.watch import Watch
from outpace.engines.sums import RowSums
from outpace.job.machine import cores
from outpace.protocol.events import Attempt, Event
from outpace.protocol.round import Round


class LocalEngine(ArenaEngine):
    """One rank's way to the others on this machine."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        sums = RowSums(self._memory.bytes, self._vector.chunks(), self.rules, self._max_grad_norm)
        self._reduction = Reduction(self._memory, sums, self._is_current, self._faults)
        self._watch.helpers = 0 if self._reduction.is_small else max(1, cores() - 1)  # more would get in their own way
        self._seen: tuple[tuple[int, int, int], float] = ((0, 0, 0), 0.0)  # how far a reduction was, and since when

    def _make_watch(self, timeout_s: float) -> Watch:
        log, bell = Log(self._files.log), Bell(self._memory.word)
        return Watch(self.rank, self.rules, log, self._snapshots, bell, self._life, self._faults, timeout_s)

    async def help(self) -> None:
        """Reduces what is sealed. There is no other process that would."""
        if self.ledger.reducing is not None:
            self._assist()

    def _reduce(self, sealed: Round) -> bool:
        """Joins those who reduce, where a core is free or nothing moves."""
        now, (before, since) = time.monotonic(), self._seen
        under_way, done = self._reduction.progress(sealed)
        seen = (tag(sealed), under_way, done)
        stands_still = seen == before
        if stands_still and now - since < SLICE_S:
            return False
        self._seen = (seen, now)
        if under_way > self._watch.helpers and not stands_still:
            return False  # as many as can are at it, and get on
        event = self._work(sealed, helping=stands_still)
        if event is None:
            return False
        self._watch.append(event)
        return True

    def _work(self, sealed: Round, helping: bool) -> Event | None:
        """This rank's part of the reduction, or a new attempt where a stopped rank still uses the slot."""
        self._holds.take(sealed)
        try:
            if not self._is_current(sealed):
                return None
            if self._holds.others_use(sealed.slot, tag(sealed), self._watch.living()):
                return self._another_attempt(sealed)
            places = {c.rank: place for place, c in enumerate(sealed.contributions)}
            return self._reduction.work(sealed, places.get(self.rank, self.rank), helping)
        finally:
            self._holds.release()

    def _another_attempt(self, sealed: Round) -> Event | None:
        living = self._watch.living()
        free = next((s for s in self.ledger.free_slots() if not self._holds.others_use(s, 0, living)), None)
        if free is None:
            return None
        self._faults.at("opening-attempt", sealed.number)
        return Attempt(sealed.number, sealed.attempt + 1, free)

    def _is_current(self, sealed: Round) -> bool:
        self._watch.refresh()
        current = self._watch.ledger.reducing
        return current is sealed or (current is not None and tag(current) == tag(sealed))
