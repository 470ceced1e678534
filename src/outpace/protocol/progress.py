"""Which quorum makes most progress: what `quorum="auto"` decides, and what keeps others from making too much late.

Owns the choice and the last few changes of it, as a fold of the log: all ranks come to the same one at the same round.
Every few rounds, the last steps of all ranks are played again with each quorum. What is on time counts in full, what is
late as little as a discount lets it weigh:

    progress(k) = (number on time + sum over late ones of 1 / (1 + lag)^2) / time it took

The rest is withheld. A discount gives it back later, but it can only do so much: with momentum, and near the largest
learning rate that trains, it was seen to fail where more than a fifth is withheld. So no quorum is taken of which that
is expected. Among the others, "auto" takes the largest that is nearly the best: lateness has a price that no count
shows, and where ranks are balanced nobody shall be left behind for a few per cent. It begins with everybody. A quorum
that was asked for is raised only as far as it must be.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from outpace.protocol.state import Part

FIRST_LOOK, LOOK_EVERY = 4, 8  #: rounds
MOST_WITHHELD = 0.2  #: share of the work
NEARLY = 0.97  #: of the best progress is good enough for a larger quorum
CHANGES = 64  #: that are remembered
_RANKS = 64  # that are played again: of more, evenly spaced ones
_CANDIDATES = 16  # quorums that are compared: of more ranks, evenly spaced ones
_STEPS = 16  # of each rank that are played


class Played(NamedTuple):
    """What became of the last steps when they were played again with some quorum."""

    progress: float  #: a nanosecond
    late: float  #: share of the contributions
    withheld: float  #: share of their weight


class Choice(NamedTuple):
    """A quorum, since when, and why."""

    round: int
    quorum: int
    ranks: int  #: that it is taken of
    progress: float  #: against waiting for all of them, as it was expected; 0 where nothing was known
    late: float  #: share of the contributions that was expected to be late

    def __str__(self) -> str:
        of = f"{self.quorum} of {self.ranks}"
        if not self.progress:
            return f"{of}, before anything is known of the ranks"
        if self.quorum == self.ranks:
            return f"{of}: nothing is gained by leaving anybody behind"
        return f"{of}: {self.progress:.2f} times the progress of waiting for all, {self.late:.0%} late"


class QuorumChoice(Part):
    changes: list[Choice]  #: the last ones, oldest first
    _looked: tuple[int, int]  # round and number of ranks of the last look

    def __init__(self, is_free: bool = True) -> None:
        self._is_free = is_free  # to take what makes most progress; else as few as may be
        self.changes = []
        self._looked = (0, 0)

    def needed(self, round_: int, least: int, histories: Sequence[Sequence[int]]) -> int:
        """How many on time make the quorum of this round, at least so many. `histories`: how long each rank took for
        its last steps; empty for a rank of which nothing is known yet."""
        since, ranks = self._looked
        pause = LOOK_EVERY if since >= FIRST_LOOK else FIRST_LOOK
        if ranks != len(histories) or not 0 <= round_ - since < pause:  # rounds may be numbered anew
            self._looked = (round_, len(histories))
            self._look(round_, least, histories)
        return self.changes[-1].quorum

    def change_at(self, round_: int) -> str:
        """What the quorum was changed to with this round, and why; empty if it was not."""
        return next((str(change) for change in reversed(self.changes) if change.round == round_), "")

    def _look(self, round_: int, least: int, histories: Sequence[Sequence[int]]) -> None:
        ranks = len(histories)
        known = [history for history in histories if history]
        if not known or not self.changes:
            found = Choice(0, ranks if self._is_free else least, ranks, 0.0, 0.0)
        else:
            found = chosen(known, min(least, len(known)), self._is_free)
        unknown = ranks - found.ranks if self._is_free else 0  # as in the beginning, they are waited for
        quorum = max(least, found.quorum + unknown)
        if not self.changes or (quorum, ranks) != self.changes[-1][1:3]:
            self.changes.append(found._replace(round=round_, quorum=quorum, ranks=ranks))
            del self.changes[:-CHANGES]


def chosen(histories: Sequence[Sequence[int]], least: int = 1, is_free: bool = True) -> Choice:
    """The quorum for ranks whose last steps took so long."""
    ranks = len(histories)
    played = sorted(histories, key=lambda history: sum(history) / len(history))
    if ranks > _RANKS:
        played = [played[i * ranks // _RANKS] for i in range(_RANKS)]
    size = len(played)
    lowest = max(1, least * size // ranks)
    steps = range(_CANDIDATES + 1)
    candidates = sorted({lowest + (size - lowest) * i // _CANDIDATES for i in steps}, reverse=is_free)
    outcomes = {k: play(played, k) for k in candidates}
    allowed = [k for k in candidates if outcomes[k].withheld <= MOST_WITHHELD]
    enough = NEARLY * max(outcomes[k].progress for k in allowed) if is_free else 0.0
    best = next(k for k in allowed if outcomes[k].progress >= enough)
    against = outcomes[best].progress / (outcomes[size].progress or 1.0)
    return Choice(0, -(-best * ranks // size), ranks, against, outcomes[best].late)


def play(histories: Sequence[Sequence[int]], quorum: int) -> Played:
    """If ranks took as long again, step by step, with this quorum."""
    ranks = range(len(histories))
    arrivals = [(histories[rank][0], rank) for rank in ranks]
    heapify(arrivals)
    version, began_at, steps = 0, [0 for _ in ranks], [1 for _ in ranks]
    now, weight, late, total = 0, 0.0, 0, _STEPS * len(histories)
    waiting: list[int] = []
    for _ in range(total):
        now, rank = heappop(arrivals)
        lag = version - began_at[rank]
        weight += 1.0 / (1 + lag) ** 2
        late += lag > 0
        waiting.append(rank)
        if lag:
            released = [waiting.pop()]  # it waits for nobody
        elif len(waiting) < quorum:
            continue
        else:
            version += 1
            released, waiting = waiting, []
        for other in released:
            began_at[other] = version
            history = histories[other]
            heappush(arrivals, (now + history[steps[other] % len(history)], other))
            steps[other] += 1
    return Played(weight / max(1, now), late / total, 1.0 - weight / total)
