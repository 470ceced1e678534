"""Engines that are broken in one place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from outpace.interface import Ticket
from tests.fuzz.lives import WatchedEngine, WatchedReplay


class LateWaits(WatchedEngine):
    """A late rank waits for the quorum, too."""

    def _arrive(self, *given: Any, **also: Any) -> Ticket:
        return super()._arrive(*given, **also)._replace(waits=True)


class NewestOnly(WatchedReplay):
    """Of the rounds it missed, a rank applies the newest alone."""

    async def apply_until(self, version: int) -> None:
        if version - 1 in self._log.ledger.completed:
            self._replica.version = max(self._replica.version, version - 1)
        await super().apply_until(version)


class BuffersApart(WatchedEngine):
    """A meeting leaves the buffers of each rank as they were."""

    def _exchange(self, place: int, ranks: Iterable[int]) -> None:
        """Nothing."""


class WaitsTooLong(WatchedEngine):
    """A rank waits for one round more than it has to."""

    async def until_complete(self, version: int, purpose: str) -> None:
        await super().until_complete(version + 1, purpose)


class NothingForLateComers(WatchedReplay):
    """Nobody writes a snapshot for a rank that cannot go on without."""

    def is_needed_here(self) -> bool:
        return False


class BaseLost(WatchedReplay):
    """What is not trained is emptied with the weights of a spent snapshot."""

    def _empty(self, buffer: int, keeps_ledger: bool) -> None:
        snapshots = self._log.ledger.snapshots
        base, snapshots.base = snapshots.base, None
        super()._empty(buffer, keeps_ledger)
        snapshots.base = base


class PrefetchedCounts(WatchedEngine):
    """A step stands for all that its rank has drawn, also for what is not computed yet."""

    def _arrive(self, *given: Any, **also: Any) -> Ticket:
        self.draws.covered += max(0, self.draws.uncovered)
        return super()._arrive(*given, **also)
