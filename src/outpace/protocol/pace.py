"""What the arrivals' times teach: how long grace should be, and which quorum pays most.

Owns the recent history of arrival times, taken from events. Must never read a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from outpace.protocol.state import Part

GRACE_SHARE = 0.15  #: of a round: a rank that comes later than this is a straggler, and not just jittery
_LAGS = 64
_INTERVALS = 9
_DURATIONS = 16
_RECONSIDER = 8  # rounds
_CANDIDATES = 32  # quorums that are compared: all of them among so many ranks, evenly spaced ones among more


class Pace(Part):
    """Recent arrival times of all ranks, as integers in nanoseconds. Observes nothing where nobody asks."""

    _met: dict[int, int]  # round -> when its quorum was met
    _lags: list[int]  # the last arrivals after their round's quorum, by how much
    _intervals: list[int]  # between the last quorums
    _started: dict[int, int]  # rank -> when it began to compute
    _durations: dict[int, list[int]]  # rank -> of its last steps
    _best: tuple[int, int, int]  # round it was found in, number of ranks, best quorum

    def __init__(self, observes: bool = True) -> None:
        self._observes = observes
        self._met, self._started, self._durations = {}, {}, {}
        self._lags, self._intervals = [], []
        self._best = (0, 0, 1)

    def arrived(self, rank: int, version: int, time_ns: int) -> None:
        """A contribution of `version` is here. Notes by how much it missed its round's quorum."""
        if not self._observes:
            return
        met = self._met.get(version)
        if met is not None:
            _note(self._lags, max(0, time_ns - met), _LAGS)  # times are taken before the append and may cross
        started = self._started.get(rank)
        if started is not None:
            _note(self._durations.setdefault(rank, []), time_ns - started, _DURATIONS)
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

    def best_quorum(self, round_: int, ranks: Collection[int]) -> int:
        """The quorum that gives the most useful contributions per second, from the observed durations.

        With quorum k a round lasts as long as the k-th fastest. Whoever is in time is worth one contribution a
        round; a later one, of duration d, gives one every d seconds, discounted by the rounds it is late.
        Looked at again every few rounds, and as soon as the number of ranks changes.
        """
        since, size, best = self._best
        if size != len(ranks) or round_ - since >= _RECONSIDER:
            best = self._most_useful(ranks)
            self._best = (round_, len(ranks), best)
        return best

    def _most_useful(self, ranks: Collection[int]) -> int:
        history = [self._durations[rank] for rank in ranks if self._durations.get(rank)]
        if len(history) < len(ranks) or not ranks:
            return max(1, -(-len(ranks) // 2))  # nothing known yet: begin with the majority
        depth = min(len(durations) for durations in history)
        rounds = [sorted(durations[-1 - i] for durations in history) for i in range(depth)]
        best, best_rate = 1, -1.0
        for k in sorted({1, *(-(-len(ranks) * i // _CANDIDATES) for i in range(1, _CANDIDATES + 1))}):
            length = sum(row[k - 1] for row in rounds) / depth
            rate = sum(_usefulness(duration, length) for row in rounds for duration in row)
            if rate > best_rate * (1 + 1e-9):
                best, best_rate = k, rate
        return best


def _note(history: list[int], value: int, most: int) -> None:
    history.append(value)
    if len(history) > most:
        del history[0]


def _usefulness(duration: int, length: float) -> float:
    if length <= 0:
        return 0.0
    if duration <= length:
        return 1.0 / length
    return 1.0 / (duration * -(-duration // max(1, int(length))))
