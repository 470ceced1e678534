"""What the arrivals' times teach: how long grace should be, how long ranks take, and when to wait no longer.

Owns the recent history of arrival times, taken from events. Must never read a clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from outpace.protocol.state import Part

GRACE_SHARE = 0.15  #: of a round: a rank that comes later than this is a straggler, and not just jittery
PATIENCE = 2  #: times the longest step of late
_LAGS = 64
_INTERVALS = 9
_DURATIONS = 16


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
