"""A trace: what all ranks of a run recorded, as values. Owns its shape; reads no file and computes no figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Step(NamedTuple):
    """One optimizer step of one rank. Times are on a clock that all ranks share, and begin with 0."""

    number: int  #: counted by the rank itself, from 1
    begin_ns: int  #: the step before had ended
    ready_ns: int  #: this rank's own gradients were there
    end_ns: int  #: the step returned
    waited_s: float  #: communication, and waiting for other ranks
    apply_s: float  #: the optimizer's own work
    late: int = 0  #: rounds that were decided while this was computed
    round: int | None = None  #: the round that was open when it arrived
    version: int | None = None  #: rounds applied to the weights it was computed with
    samples: float | None = None
    loss: float | None = None  #: of this rank's mini-batch

    @property
    def compute_s(self) -> float:
        """Data loading, forward and backward."""
        return (self.ready_ns - self.begin_ns) / 1e9

    def shifted(self, by_ns: int) -> Step:
        """The same step on another clock."""
        begin, ready, end = self.begin_ns + by_ns, self.ready_ns + by_ns, self.end_ns + by_ns
        return self._replace(begin_ns=begin, ready_ns=ready, end_ns=end)


class Pause(NamedTuple):
    """A time in which a rank took no steps: in `synchronize()`, or in `finish()`."""

    name: str
    begin_ns: int
    end_ns: int

    def shifted(self, by_ns: int) -> Pause:
        """The same pause on another clock."""
        return Pause(self.name, self.begin_ns + by_ns, self.end_ns + by_ns)


class Given(NamedTuple):
    """A contribution, as a round names it."""

    rank: int
    step: int
    version: int


class TracedRound(NamedTuple):
    """A round, as its first contributor saw it."""

    number: int
    at_ns: int  #: it was applied by the rank that recorded it
    world: int
    contributions: tuple[Given, ...]
    void: bool
    recorded_by: int

    def shifted(self, by_ns: int) -> TracedRound:
        """The same round on another clock."""
        return self._replace(at_ns=self.at_ns + by_ns)


class Tally(NamedTuple):
    """What became of one rank's contributions, as the ledger counted them."""

    on_time: int
    carried: int
    dropped: int
    staleness: dict[int, int]  #: rounds late -> how many of those that were applied


@dataclass(frozen=True)
class RankTrace:
    """What one rank recorded: at least one step."""

    rank: int
    host: str
    steps: tuple[Step, ...]
    pauses: tuple[Pause, ...] = ()
    tally: Tally | None = None  #: where there were rounds, or weights to average


@dataclass(frozen=True)
class Trace:
    """What all ranks of a run recorded, as far as it could be read."""

    world: int
    strategy: str
    payload_bytes: int  #: that one rank gives to a round
    ranks: dict[int, RankTrace]  #: in order; some may be missing
    rounds: tuple[TracedRound, ...] = ()  #: in order of time
    skipped: tuple[str, ...] = ()  #: what was left out, in words
