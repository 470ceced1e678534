"""What is recorded of a run: one struct per kind of line, for everyone who writes, reads or computes with it.

A rank's file holds one JSON object per line. Times are nanoseconds of the host's monotonic clock; the header relates
them to wall-clock time. A line has no tag: the key that only its kind has says what it is (see `KINDS`).

The training thread only queues a function of this file with its arguments, as a plain tuple. The thread that writes
calls it, so that building and encoding a record costs training nothing.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from outpace.interface import Ticket
from outpace.protocol.round import Round
from outpace.version import __version__

FORMAT = 1  #: increased when today's readers would misunderstand the lines
MOST_RANKS = 2**20
LONGEST_NS = 30 * 24 * 3600 * 10**9  #: the longest step: a month
ROUNDING_S = 1e-5  #: durations are rounded when they are written

Count = Annotated[int, Meta(ge=0, le=2**62)]  #: as nanoseconds, 146 years
Rank = Annotated[int, Meta(ge=0, le=MOST_RANKS)]
World = Annotated[int, Meta(ge=1, le=MOST_RANKS)]
Amount = Annotated[float, Meta(ge=0.0, le=1e12)]
Loss = Annotated[float, Meta(ge=-1e300, le=1e300)]

Told = float | None  #: by the training loop, if it likes
Deferred = tuple[Any, ...]  #: a function that returns a record, and its arguments


class Unreadable(ValueError):
    """A line that cannot be believed. Its message continues the sentence "line 12 ..."."""


class Record(Struct, frozen=True, gc=False, omit_defaults=True):
    """One line. Field types declare which values are possible; `checked` adds what types cannot say."""

    def checked(self) -> Record:
        """The record as far as it can be believed. Only for records that were read; raises `Unreadable`."""
        return self


class Header(Record, frozen=True, kw_only=True):
    """The first line of each incarnation of a rank."""

    outpace: Any = None  #: the version that wrote it; like `pid`, for people only, so not checked
    trace: Count  #: the format
    rank: Rank
    world: World
    strategy: str
    payload_bytes: Count  #: that one rank contributes to a round
    incarnation: Any = None  #: 2 and more for a rank that was started again
    host: str
    pid: Any = None
    monotonic_ns: Count  #: the same moment on both clocks
    unix_s: Amount

    @classmethod
    def here(cls, rank: int, world: int, strategy: str, payload_bytes: int, incarnation: int = 1) -> Header:
        return cls(
            outpace=__version__,
            trace=FORMAT,
            rank=rank,
            world=world,
            strategy=printable(strategy, 200),
            payload_bytes=payload_bytes,
            incarnation=incarnation,
            host=printable(socket.gethostname(), 200),
            pid=os.getpid(),
            monotonic_ns=time.monotonic_ns(),
            unix_s=time.time(),
        )

    @property
    def unix_ns(self) -> int:
        return int(self.unix_s * 1e9)

    @property
    def clock_ns(self) -> int:
        """Added to this file's times, it gives wall-clock time."""
        return self.unix_ns - self.monotonic_ns

    def checked(self) -> Header:
        if self.rank >= self.world:
            raise Unreadable(f"has rank={self.rank}")
        return replace(self, host=printable(self.host, 200), strategy=printable(self.strategy, 200))


class Foreign(Record, frozen=True):
    """The header of a format that this version cannot read; the lines after it are of that format too."""

    trace: Count


class Step(Record, frozen=True):
    number: Count = field(name="step")  #: counted by the rank itself, from 1
    begin_ns: Count = field(name="begin")  #: the previous step ended
    ready_ns: Count = field(name="ready")  #: this rank's own gradients were ready
    end_ns: Count = field(name="end")  #: the step returned
    waited_s: Amount  #: communication, and waiting for other ranks
    apply_s: Amount  #: the optimizer's own work
    loss: Loss | None = None  #: of this rank's mini-batch
    samples: Amount | None = None
    round: Count | None = None  #: the round that was open when it arrived
    version: Count | None = None  #: rounds applied to the weights it was computed with
    late: Count | None = None  #: rounds decided while it was computed; None where there are no rounds

    @property
    def compute_s(self) -> float:
        """Data loading, forward and backward."""
        return (self.ready_ns - self.begin_ns) / 1e9

    def shifted(self, by_ns: int) -> Step:
        begin, ready, end = self.begin_ns + by_ns, self.ready_ns + by_ns, self.end_ns + by_ns
        return replace(self, begin_ns=begin, ready_ns=ready, end_ns=end)

    def checked(self) -> Step:
        begin, ready, end = self.begin_ns, self.ready_ns, self.end_ns
        if not begin <= ready <= end or end - begin > LONGEST_NS:
            raise Unreadable(f"goes from begin={begin} over ready={ready} to end={end}")
        most_s = (end - ready) / 1e9 + ROUNDING_S
        if self.waited_s > most_s:
            raise Unreadable(f"has waited_s={self.waited_s}")
        if self.apply_s > most_s:
            raise Unreadable(f"has apply_s={self.apply_s}")
        return self


class Pause(NamedTuple):
    """A time in which a rank took no steps: in `synchronize()`, or in `finish()`."""

    name: str
    begin_ns: int
    end_ns: int

    def shifted(self, by_ns: int) -> Pause:
        return Pause(self.name, self.begin_ns + by_ns, self.end_ns + by_ns)


class Pausing(Record, frozen=True):
    """A pause began: those who follow the run must not take this rank for late."""

    name: str = field(name="pausing")
    begin_ns: Count = field(name="begin")

    def checked(self) -> Pausing:
        return replace(self, name=printable(self.name, 200))


class Synchronized(Record, frozen=True):
    generation: Count = field(name="sync")
    begin_ns: Count = field(name="begin")
    end_ns: Count = field(name="end")

    @property
    def pause(self) -> Pause:
        return Pause("synchronize", self.begin_ns, self.end_ns)

    def checked(self) -> Synchronized:
        if not 0 <= self.end_ns - self.begin_ns <= LONGEST_NS:
            raise Unreadable(f"goes from begin={self.begin_ns} to end={self.end_ns}")
        return self


class Given(NamedTuple):
    """A contribution, as a round names it."""

    rank: Rank
    step: Count
    version: Count


class TracedRound(Record, frozen=True):
    """A round, as its first contributor saw it."""

    number: Count = field(name="round")
    at_ns: Count = field(name="at")  #: it was applied by the rank that recorded it
    world: World
    contributions: tuple[Given, ...]
    void: bool
    quorum: str = ""  #: what it was changed to with this round, and why
    recorded_by: int = -1  #: known from the file it is in; never written

    def shifted(self, by_ns: int) -> TracedRound:
        return replace(self, at_ns=self.at_ns + by_ns)


class Tally(Record, frozen=True, kw_only=True):
    """What became of one rank's contributions, as the ledger counted them until its end."""

    applied: tuple[tuple[Count, Count], ...] = field(name="tally")  #: rounds late, and how many were so late
    on_time: Count
    carried: Count
    dropped: Count

    @property
    def staleness(self) -> dict[int, int]:
        return dict(self.applied)


class Elsewhere(Record, frozen=True):
    """What one place in the script has waited so far in collectives that are not outpace's."""

    site: str = field(name="elsewhere")  #: "barrier at model_checkpoint.py:622"
    calls: Count
    seconds: Amount

    def checked(self) -> Elsewhere:
        return replace(self, site=printable(self.site, 200))

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s in {self.site} ({self.calls} call{'s' * (self.calls != 1)})"


class Finished(Record, frozen=True):
    """The last line of a recording that was closed properly."""

    at_ns: Count = field(name="finished")
    begin_ns: Count | None = field(name="begin", default=None)  #: when `finish()` was called, if it was

    @property
    def pause(self) -> Pause | None:
        return None if self.begin_ns is None else Pause("finish", self.begin_ns, self.at_ns)

    def checked(self) -> Finished:
        if self.begin_ns is not None and not 0 <= self.at_ns - self.begin_ns <= LONGEST_NS:
            raise Unreadable(f"goes from begin={self.begin_ns} to finished={self.at_ns}")
        return self


class Lost(Record, frozen=True):
    """Lines that were dropped because the disk was too slow."""

    lines: Count = field(name="lost")


class Cut(Record, frozen=True):
    """The last line of a recording that ended before training did."""

    reason: str = field(name="cut")

    def checked(self) -> Cut:
        return replace(self, reason=printable(self.reason, 200))


#: By the key that tells them apart. A step also names its round, so the order decides.
KINDS: dict[str, type[Record]] = {
    "trace": Header,
    "step": Step,
    "sync": Synchronized,
    "pausing": Pausing,
    "round": TracedRound,
    "tally": Tally,
    "elsewhere": Elsewhere,
    "finished": Finished,
    "lost": Lost,
    "cut": Cut,
}


# -- writing ----------------------------------------------------------------------------------------------------------


def loop_step(
    step: int, begin: int, ready: int, end: int, wait_s: float, apply_s: float, loss: Told = None, samples: Told = None
) -> Step:
    """A step of an ordinary loop. Durations are in whole microseconds, to keep the line short."""
    rounded = round(wait_s, 6), round(max(0.0, apply_s), 6)
    return Step(step, begin, ready, end, *rounded, _finite(loss), _finite(samples))


def strategy_step(
    ticket: Ticket, begin: int, ready: int, end: int, waited_s: float, version: int, samples: float, loss: Told = None
) -> Step:
    """A step of a `DistributedOptimizer`. Apart from waiting, it publishes its contribution and applies rounds."""
    rounded = round(waited_s, 6), round(max(0.0, (end - ready) / 1e9 - waited_s), 6)
    told = _finite(loss), _finite(samples)
    late = max(0, ticket.round - version)
    return Step(ticket.step, begin, ready, end, *rounded, *told, ticket.round, version, late)


def traced_round(record: Round, at_ns: int, quorum: str = "") -> TracedRound:
    given = tuple([Given(c.rank, c.step, c.version) for c in record.contributions])
    return TracedRound(record.number, at_ns, record.world, given, record.void, quorum)


def tally(on_time: int, carried: int, dropped: int, staleness: Mapping[int, int]) -> Tally:
    applied = tuple((late, count) for late, count in sorted(staleness.items()) if count)
    return Tally(applied=applied, on_time=on_time, carried=carried, dropped=dropped)


def _finite(value: Told) -> Told:
    return float(value) if value is not None and math.isfinite(value) else None  # JSON has no infinity


_R = TypeVar("_R", bound=Record)
_encode = msgspec.json.Encoder().encode


def to_bytes(deferred: Deferred) -> bytes:
    make, *arguments = deferred
    return _encode(make(*arguments)) + b"\n"


# -- reading ----------------------------------------------------------------------------------------------------------


def parse(line: bytes) -> Record:
    """The record on this line, which may come from anywhere. Raises `Unreadable`, and nothing else."""
    try:
        return _parsed(json.loads(line.decode()))  # not by msgspec, which could not name a bad value such as NaN
    except RecursionError:
        raise Unreadable("is nested too deeply") from None
    except Unreadable:
        raise
    except ValueError:
        raise Unreadable("is not JSON (cut in the middle?)") from None


def _parsed(plain: Any) -> Record:
    if not isinstance(plain, dict):
        raise Unreadable("is not a JSON object")
    kind = next((kind for key, kind in KINDS.items() if key in plain), None)
    if kind is None:
        raise Unreadable("is of a kind this version of outpace does not know")
    if kind is Header and _converted(plain, Foreign).trace != FORMAT:
        kind = Foreign
    return _converted(plain, kind).checked()


def _converted(plain: dict[str, Any], kind: type[_R]) -> _R:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise Unreadable(_refusal(str(error), plain)) from None


def _refusal(error: str, plain: dict[str, Any]) -> str:
    """msgspec names the field, but not its value."""
    missing = re.search(r"missing required field `(\w+)`", error)
    if missing:
        return f"has no {missing[1]}"
    wrong = re.search(r"at `\$\.(\w+)", error)
    return f"has {wrong[1]}={printable(repr(plain[wrong[1]]), 40)}" if wrong else "has values that cannot be"


def printable(given: str, most: int) -> str:
    """The text, cut to this length, with everything escaped that a terminal might take for a control sequence."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in given[:most])
    return safe if len(given) <= most else f"{safe}..."


@dataclass(frozen=True)
class RankTrace:
    """What one rank recorded: at least one step. Times begin with 0, on a clock that all ranks share."""

    rank: int
    host: str
    steps: tuple[Step, ...]
    pauses: tuple[Pause, ...] = ()
    tally: Tally | None = None  #: where there were rounds, or weights to average

    @property
    def end_ns(self) -> int:
        return max([self.steps[-1].end_ns, *(pause.end_ns for pause in self.pauses)])


@dataclass(frozen=True)
class Trace:
    """What all ranks of a run recorded, as values on one clock."""

    world: int
    strategy: str
    payload_bytes: int  #: that one rank contributes to a round
    ranks: dict[int, RankTrace]  #: in order; some may be missing
    rounds: tuple[TracedRound, ...] = ()  #: in order of time
    skipped: tuple[str, ...] = ()  #: what was left out, in words
