"""What the arrivals' times teach: how long grace should be, how long to wait at all, and which quorum to take.

Owns the recent history of arrival times, taken from events, and the choice of a quorum. Must never read a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from outpace.protocol.state import Part

GRACE_SHARE = 0.15  #: of a round: a rank that comes later than this is a straggler, and not just jittery
PATIENCE = 2  #: times the longest step of late
_LAGS, _INTERVALS, _DURATIONS = 64, 9, 16  # that are remembered
FIRST_LOOK, LOOK_EVERY = 2, 8  #: rounds; between the two, whenever twice as many have passed
MOST_WITHHELD = 0.2  #: share of the work
MOST_LATE = 0.5  #: share of the contributions
NEARLY = 0.97  #: of the best progress is good enough for a larger quorum
CHANGES = 64  #: that are remembered
_RANKS = 64  # that are played again: of more, evenly spaced ones
_CANDIDATES = 16  # quorums that are compared: of more ranks, evenly spaced ones
_STEPS = 16  # of each rank that are played


class Pace(Part):
    """Recent arrival times of all ranks, as integers in nanoseconds. Observes nothing where nobody asks."""

    _met: dict[int, int]  # round -> when its quorum was met
    _lags: list[int]  # the last arrivals after their round's quorum, by how much
    _intervals: list[int]  # between the last quorums
    _started: dict[int, int]  # rank -> when it began to compute
    _durations: dict[int, list[int]]  # rank -> of its last steps

    def __init__(self, observes: bool = True) -> None:
        self._observes = observes
        self._met, self._started, self._durations = {}, {}, {}
        self._lags, self._intervals = [], []

    def arrived(self, rank: int, version: int, time_ns: int) -> None:
        """A contribution of `version` is here. Notes by how much it missed its round's quorum."""
        if not self._observes:
            return
        met = self._met.get(version)
        if met is not None:
            _note(self._lags, max(0, time_ns - met), _LAGS)  # times are taken before the append and may cross
        started = self._started.get(rank)
        if started is not None:
            _note(self._durations.setdefault(rank, []), max(0, time_ns - started), _DURATIONS)
        self._started[rank] = time_ns

    def released(self, ranks: Iterable[int], time_ns: int) -> None:
        """These ranks got the result they waited for, and compute again."""
        if self._observes:
            self._started.update(dict.fromkeys(ranks, time_ns))

    def quorum_met(self, round_: int, time_ns: int, keep: int) -> None:
        if not self._observes:
            return
        previous = self._met.get(round_ - 1)
        if previous is not None:
            _note(self._intervals, time_ns - previous, _INTERVALS)
        self._met[round_] = time_ns
        self._met = {number: met for number, met in self._met.items() if number >= round_ - keep}

    def forget(self, rank: int) -> None:
        """The rank has left: its times say nothing about future rounds."""
        self._started.pop(rank, None)
        self._durations.pop(rank, None)

    def grace_ns(self) -> int:
        """How long to wait after the quorum for ranks that only jitter.

        Covers nine in ten of the lags that fit under the cap of 15 % of a round. Those that do not are stragglers', and
        waiting for them is what grace must avoid. A round that everybody comes to ends with the last of them.
        """
        if not self._intervals or not self._lags:
            return 0
        cap = int(GRACE_SHARE * sorted(self._intervals)[len(self._intervals) // 2])
        fitting = sorted(lag for lag in self._lags if lag <= cap)
        if not fitting:
            return 0
        covered = fitting[(9 * len(fitting)) // 10 if len(fitting) > 1 else 0]
        return min(cap, covered * 5 // 4 + 1)  # one more, so that ranks of the same nanosecond are together, too

    def may_be_here(self, rank: int, time_ns: int) -> bool:
        """Whether a rank comes by then if it is as quick as in the quickest of its last steps."""
        started, durations = self._started.get(rank), self._durations.get(rank)
        return started is None or not durations or started + min(durations) <= time_ns

    def durations(self, ranks: Iterable[int]) -> list[list[int]]:
        """How long each of these ranks took for its last steps, the latest last."""
        return [self._durations.get(rank, []) for rank in ranks]

    def patience_ns(self) -> int | None:
        """How long to wait for ranks of a quorum that most are here of. Longer than that, nobody took lately, so that
        something happened to who is missing. None before anything is known."""
        longest = max((max(durations) for durations in self._durations.values()), default=None)
        return None if longest is None else PATIENCE * longest


def _note(history: list[int], value: int, most: int) -> None:
    history.append(value)
    if len(history) > most:
        del history[0]


class Played(NamedTuple):
    """What became of the last steps when they were played again with some quorum."""

    progress: float  #: a nanosecond
    late: float  #: share of the contributions
    withheld: float  #: share of their weight

    @property
    def can_be_borne(self) -> bool:
        return self.withheld <= MOST_WITHHELD and self.late <= MOST_LATE


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
    """Which quorum makes most progress: what `quorum="auto"` decides, and what keeps others from making too much late.

    A fold of the log: all ranks come to the same choice at the same round. Every few rounds, the last steps of all
    ranks are played again with each quorum. Each contribution counts as much as it would weigh (`round.Discount`):

        progress(k) = sum of the weights / time it took

    The rest is withheld. A discount gives it back later, but it can only do so much: with momentum, and near the
    largest learning rate that trains, it was seen to fail where more than a fifth is withheld, and looking ahead to
    make up for lateness was seen to fail where more than half of the work is late. So no quorum is taken with which
    either is expected. Among the others, "auto" takes the largest that is nearly the best: lateness has a price that no
    count shows, and where ranks are balanced nobody shall be left behind for a few per cent. It begins with everybody.
    A quorum that was asked for is raised only as far as it must be.
    """

    changes: list[Choice]  #: the last ones, oldest first
    _looked: tuple[int, int]  # round and number of ranks of the last look

    def __init__(self, is_free: bool = True, usual_lag: int = 0) -> None:
        self._is_free = is_free  # to take what makes most progress; else as few as may be
        self._usual_lag = usual_lag
        self.changes = []
        self._looked = (0, 0)

    def needed(self, round_: int, least: int, ranks: int, histories: Callable[[], Sequence[Sequence[int]]]) -> int:
        """How many on time make the quorum of this round, of so many ranks, and at least so many. `histories`: how long
        each rank took for its last steps; empty for a rank of which nothing is known yet."""
        since, of = self._looked
        pause = min(max(FIRST_LOOK, since), LOOK_EVERY)
        if of != ranks or not 0 <= round_ - since < pause:  # rounds may be numbered anew
            self._looked = (round_, ranks)
            self._look(round_, least, histories())
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
            found = chosen(known, min(least, len(known)), self._is_free, self._usual_lag)
        unknown = ranks - found.ranks if self._is_free else 0  # as in the beginning, they are waited for
        quorum = max(least, found.quorum + unknown)
        if not self.changes or (quorum, ranks) != self.changes[-1][1:3]:
            self.changes.append(found._replace(round=round_, quorum=quorum, ranks=ranks))
            del self.changes[:-CHANGES]


def chosen(histories: Sequence[Sequence[int]], least: int = 1, is_free: bool = True, usual_lag: int = 0) -> Choice:
    """The quorum for ranks whose last steps took so long."""
    ranks = len(histories)
    played = sorted(histories, key=lambda history: sum(history) / len(history))
    if ranks > _RANKS:
        played = [played[i * ranks // _RANKS] for i in range(_RANKS)]
    size = len(played)
    lowest = max(1, least * size // ranks)
    steps = range(_CANDIDATES + 1)
    candidates = sorted({lowest + (size - lowest) * i // _CANDIDATES for i in steps}, reverse=is_free)
    outcomes = {k: play(played, k, usual_lag) for k in candidates}
    allowed = [k for k in candidates if outcomes[k].can_be_borne]
    enough = NEARLY * max(outcomes[k].progress for k in allowed) if is_free else 0.0
    best = next(k for k in allowed if outcomes[k].progress >= enough)
    against = outcomes[best].progress / (outcomes[size].progress or 1.0)
    return Choice(0, -(-best * ranks // size), ranks, against, outcomes[best].late)


def play(histories: Sequence[Sequence[int]], quorum: int, usual_lag: int = 0) -> Played:
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
        weight += min(1.0, (1 + usual_lag) / (1 + lag)) ** 2
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
