"""G13: every item of the pool is in one place, and is contributed once, by the rank that used it.

An account of its own: what a rank says it uses, against what the ledger takes out of its hand with its contribution.
"""

from __future__ import annotations

from collections.abc import Sequence

from outpace.protocol.events import Arrive, Event, Outcome
from tests.fuzz.checkers.base import Checker
from tests.fuzz.lives import FINISHED, Item, Life
from tests.fuzz.watch import Scene


class DrawnOnce(Checker):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._used: dict[tuple[int, int], list[Item]] = {}  # by rank and incarnation, in its latest step
        self._held: dict[int, list[Item]] = {}  # by rank
        self._trained: list[Item] = []
        self._items = 0  # of an epoch

    def uses(self, life: Life, items: list[Item]) -> None:
        self._used[life.rank, life.engine.incarnation] = items

    def event(self, event: Event, outcome: Outcome) -> None:
        if not self.ledger.pool.latest:
            return
        if isinstance(event, Arrive) and not outcome.is_ignored:
            self._note_contribution(event)
        self._held = {rank: _items(hand.shares) for rank, hand in self.ledger.pool.hands.items()}
        self._items = max(self._items, *(epoch.total for epoch in self.ledger.pool.epochs.values()))
        found, expected = self._everywhere(), self._all()
        assert len(found) == len(set(found)), (
            f"items are in two places: {sorted({i for i in found if found.count(i) > 1})}"
        )
        assert sorted(found) == expected, f"items are nowhere: {sorted({*expected} - {*found})}"

    def _note_contribution(self, event: Arrive) -> None:
        hand = self.ledger.pool.hands.get(event.rank)
        before, now = self._held.get(event.rank, []), [] if hand is None else _items(hand.shares)
        given, used = before[: len(before) - len(now)], self._used.get((event.rank, event.incarnation), [])
        assert given == used, f"rank {event.rank} used {used} in step {event.step}, which is recorded as of {given}"
        self._trained += given

    def _everywhere(self) -> list[Item]:
        pool = self.ledger.pool
        fresh = [(n, item) for (_, n), epoch in pool.epochs.items() for part in epoch.fresh for item in range(*part)]
        return [
            *fresh,
            *_items(pool.returned),
            *(item for held in self._held.values() for item in held),
            *self._trained,
        ]

    def _all(self) -> list[Item]:
        return [(epoch, item) for epoch in range(self.ledger.pool.latest[0] + 1) for item in range(self._items)]

    def end(self, lives: Sequence[Life]) -> None:
        if all(life.fate == FINISHED for life in lives):
            missing = sorted({*self._all()} - {*self._trained}) if self._items else []
            assert not missing, f"nobody crashed, and nobody trained on {missing}"


def _items(shares: Sequence[tuple[int, int, int, int]]) -> list[Item]:
    return [(epoch, item) for _, epoch, start, stop in shares for item in range(start, stop)]
