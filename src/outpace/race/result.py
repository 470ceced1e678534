"""What a race found, as values. Owns their shape and the figures that follow from them; reads no file, runs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from outpace.observe.figures import late_share
from outpace.race.settings import Settings
from outpace.workloads.base import Metric

LEARNED = 0.98  #: of what the baseline learns is the target; its very end is a matter of luck
BASELINES = ("ddp", "allreduce")  #: what others are compared with: the first of these that finished


class Point(NamedTuple):
    """One point of a curve: how good the model was, on data that no rank trains on."""

    seconds: float  #: since training began
    epoch: float  #: how often the ranks together had seen the training data
    loss: float
    metric: float


class Losses(NamedTuple):
    """The loss of mini-batches while they were trained on, in the mean over all ranks and a short time."""

    seconds: float
    loss: float


@dataclass(frozen=True)
class RankResult:
    """What one rank did."""

    rank: int
    steps: int
    samples: float
    seconds: float  #: from its first step to its end
    computed_s: float  #: until its own gradients were there, over all steps
    waited_s: float  #: from then until its step was done, over all steps, and in finish()
    on_time: int = 0  #: contributions that the round they were computed for took in
    carried: int = 0  #: those that a later one took in
    dropped: int = 0
    share: float = 0.0  #: of all contributions that were applied


@dataclass(frozen=True)
class Attempt:
    """One system, once to its end, or until it failed."""

    seed: int
    directory: str  #: of its recording, within the run directory
    seconds: float = 0.0  #: training alone: from the first rank's first step to the last rank's end
    curve: tuple[Point, ...] = ()
    losses: tuple[Losses, ...] = ()
    staleness: tuple[tuple[int, int], ...] = ()  #: rounds late, and how many contributions were so late
    ranks: tuple[RankResult, ...] = ()
    error: str | None = None  #: why it came to no end, in words

    @property
    def samples(self) -> float:
        """Of all ranks."""
        return sum(rank.samples for rank in self.ranks)

    @property
    def samples_per_s(self) -> float:
        """Of all ranks."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def waited_s(self) -> float:
        """Of a rank, in the mean."""
        return fmean(rank.waited_s for rank in self.ranks)

    @property
    def slowest(self) -> RankResult:
        """The rank that computed longest for a step."""
        return max(self.ranks, key=lambda rank: rank.computed_s / max(1, rank.steps))

    def seconds_to(self, target: float, metric: Metric) -> float | None:
        """When the model was first as good as this; None if it never was."""
        return next((p.seconds for p in self.curve if metric.is_reached(p.metric, target)), None)


@dataclass(frozen=True)
class Entry:
    """A system that took part, with one attempt for each repetition."""

    system: str
    title: str  #: what people read for its name
    attempts: tuple[Attempt, ...] = ()

    @property
    def finished(self) -> tuple[Attempt, ...]:
        """The attempts that came to their end."""
        return tuple(attempt for attempt in self.attempts if attempt.error is None)

    @property
    def error(self) -> str | None:
        """Why no attempt came to its end, if none did."""
        errors = [attempt.error for attempt in self.attempts if attempt.error is not None]
        return errors[0] if errors and not self.finished else None

    def mean(self, figure: Callable[[Attempt], float]) -> float:
        """Over the attempts that came to their end."""
        return fmean(map(figure, self.finished))

    @property
    def seconds(self) -> float:
        """In the mean."""
        return self.mean(lambda attempt: attempt.seconds)

    @property
    def final(self) -> float | None:
        """The metric at the end, in the mean; None where nothing was measured."""
        finals = [attempt.curve[-1].metric for attempt in self.finished if attempt.curve]
        return fmean(finals) if finals else None

    @property
    def staleness(self) -> dict[int, int]:
        """Of all attempts that came to their end."""
        counts: Counter[int] = Counter()
        for attempt in self.finished:
            counts.update(dict(attempt.staleness))
        return dict(sorted(counts.items()))

    @property
    def late_share(self) -> float:
        """Share of the applied contributions that were late."""
        return late_share(self.staleness)


@dataclass(frozen=True)
class Race:
    """All of it."""

    settings: Settings
    command: str  #: what repeats it
    metric: Metric
    entries: tuple[Entry, ...]
    began: str = ""  #: date and time, as ISO 8601 has it
    machine: str = ""  #: in words
    outpace: str = ""  #: version
    interrupted: bool = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.interrupted or all(len(entry.attempts) >= self.settings.repeat for entry in self.entries)

    @property
    def finished(self) -> tuple[Entry, ...]:
        """Entries with at least one attempt that came to its end."""
        return tuple(entry for entry in self.entries if entry.finished)

    @property
    def baseline(self) -> Entry | None:
        """What the others are compared with: DDP, if it took part."""
        by_name = {entry.system: entry for entry in self.finished}
        return next((by_name[name] for name in BASELINES if name in by_name), None)

    @property
    def target(self) -> float | None:
        """The metric that the time to target is taken of: the given one, or most of the way that the baseline went from
        its beginning to its end. None if there is neither."""
        if self.settings.target is not None:
            return self.settings.target
        ways = [] if self.baseline is None else [a.curve for a in self.baseline.finished if a.curve]
        ends = [way[0].metric + LEARNED * (way[-1].metric - way[0].metric) for way in ways]
        return fmean(ends) if ends else None

    def speedup(self, entry: Entry) -> float | None:
        """How many times faster than the baseline it did the same work; None without one."""
        if self.baseline is None:
            return None
        return entry.mean(lambda a: a.samples_per_s) / self.baseline.mean(lambda a: a.samples_per_s)

    def seconds_to_target(self, entry: Entry) -> float | None:
        """In the mean; None if an attempt never was as good, or there is no target."""
        if self.target is None:
            return None
        times = [attempt.seconds_to(self.target, self.metric) for attempt in entry.finished]
        reached = [seconds for seconds in times if seconds is not None]
        return fmean(reached) if reached and len(reached) == len(times) else None

    @property
    def winner(self) -> Entry | None:
        """Who was first at the target; where there is none, who was fastest."""
        timed = [(seconds, e) for e in self.finished if (seconds := self.seconds_to_target(e)) is not None]
        if timed:
            return min(timed, key=lambda pair: pair[0])[1]
        return max(self.finished, key=lambda e: e.mean(lambda a: a.samples_per_s), default=None)
