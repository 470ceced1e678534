"""What a race is asked for and what it found, as values, with the figures that follow from recordings.

Reads no file, runs nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from outpace.errors import InvalidRules
from outpace.observe.figures import applied_shares, late_share, staleness_of
from outpace.observe.schema import RankTrace, Tally, Trace
from outpace.simulation.scenario import BALANCED, BOTH, DATA, SHARED, SPLIT
from outpace.spec import is_whole
from outpace.workloads import WORKLOADS
from outpace.workloads.base import Metric

HELD = 3  #: points of a curve in a row that are as good as the target in the mean: it was not reached by luck
LEARNED = 0.98  #: of what the baseline learns is the target; its very end is a matter of luck
AS_GOOD = 0.01  #: a share that is worse by no more than a point is as good
AS_GOOD_OF = 0.05  #: another metric, by no more than this part of the baseline's
BUSY = 1.2  #: ranks that computed longer than asked by this factor had no processor to themselves
LOSSES = 200  #: points of the training loss
BASELINES = ("ddp", "allreduce")  #: what others are compared with: the first of these that finished


@dataclass(frozen=True)
class Settings:
    """A workload, the ranks that train it, how long, and what slows them down.

    epochs, rounds, seconds: how long each rank trains; one of them. A round is one mini-batch of every rank.
    target: the metric that the time to target is taken of; by default 98 % of what DDP learns.
    compute_ms: emulated computing of a mean mini-batch; 0 computes for real, fair for up to as many ranks as cores.
    microbatches: of a mini-batch, for strategies that may end one early.
    data: "split"; "shared": whoever is free takes the next mini-batch; "balanced": mini-batches of equal cost, where
        samples differ in length; "both". Systems that need all ranks in every step keep their data split.
    repeat: how often every system runs, each time with the next seed.
    tune: every system gets the learning rate that suits it best, found on other seeds; else all have the workload's.
    script, arguments: a training script to run instead of a workload, and its command-line arguments.
    """

    workload: str = "hyperplane"
    ranks: int = 8
    imbalance: str = "none"
    epochs: float | None = None
    rounds: int | None = None
    seconds: float | None = None
    target: float | None = None
    compute_ms: float = 100.0
    microbatches: int = 4
    data: str = SPLIT
    seed: int = 0
    repeat: int = 1
    tune: bool = False
    script: str | None = None
    arguments: tuple[str, ...] = ()

    @property
    def trains(self) -> str:
        """What is trained, as people call it."""
        return self.workload if self.script is None else Path(self.script).name

    @property
    def uneven(self) -> str:
        """What makes some steps longer than others: the data by nature, and what slows ranks down."""
        if self.script is not None:
            return "the script's own"
        maker = WORKLOADS.get(self.workload.partition(":")[0])
        by_nature = "" if self.is_balanced else getattr(maker, "by_nature", "")
        given = "" if self.imbalance == "none" else self.imbalance
        return " and ".join(filter(None, (by_nature, given))) or "none"

    @property
    def is_shared(self) -> bool:
        return self.data in (SHARED, BOTH)

    @property
    def is_balanced(self) -> bool:
        return self.data in (BALANCED, BOTH)

    @property
    def is_emulated(self) -> bool:
        return self.script is None and self.compute_ms > 0

    def __post_init__(self) -> None:
        for name in ("ranks", "microbatches", "repeat"):
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise InvalidRules(f"{name}={value!r} must be a whole number, at least 1")
        every = {"epochs": self.epochs, "rounds": self.rounds, "seconds": self.seconds}
        lengths = {name: value for name, value in every.items() if value is not None}
        if len(lengths) > 1:
            raise InvalidRules(f"a race has one length: give one of {' and '.join(lengths)}, not {len(lengths)}")
        for name, value in lengths.items():
            if not 0 < value < math.inf:
                raise InvalidRules(f"{name}={value!r} must be more than 0")
        if self.data not in DATA:
            raise InvalidRules(f"data={self.data!r} must be one of {', '.join(DATA)}")
        if not 0 <= self.compute_ms < math.inf:
            raise InvalidRules(f"compute_ms={self.compute_ms!r} must be a number of milliseconds, 0 or more")


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
    overrun: float = 1.0  #: how many times as long as asked it computed, where computing is emulated


@dataclass(frozen=True)
class Attempt:
    """One run of one system, finished or failed."""

    seed: int
    directory: str  #: of its recording, within the run directory
    seconds: float = 0.0  #: training alone: from the first rank's first step to the last rank's end
    curve: tuple[Point, ...] = ()
    losses: tuple[Losses, ...] = ()
    staleness: tuple[tuple[int, int], ...] = ()  #: rounds late, and how many contributions were so late
    ranks: tuple[RankResult, ...] = ()
    error: str | None = None  #: why it failed, in words

    @property
    def samples(self) -> float:
        return sum(rank.samples for rank in self.ranks)

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def waited_s(self) -> float:
        return fmean(rank.waited_s for rank in self.ranks)

    @property
    def slowest(self) -> RankResult:
        """The rank that computed longest for a step."""
        return max(self.ranks, key=lambda rank: rank.computed_s / max(1, rank.steps))

    @property
    def overrun(self) -> float:
        return fmean(rank.overrun for rank in self.ranks) if self.ranks else 1.0

    def seconds_to(self, target: float, metric: Metric) -> float | None:
        """When the model was first as good as this for good: from then on it is so in the mean of any few points in a
        row, and at the end. None if it never was."""
        found = None
        for index in reversed(range(len(self.curve))):
            if not metric.is_reached(fmean(point.metric for point in self.curve[index : index + HELD]), target):
                break
            if metric.is_reached(self.curve[index].metric, target):
                found = self.curve[index].seconds
        return found

    def metric_after(self, samples: float) -> float | None:
        """How good the model was when so many samples had been trained on, to the nearest point of the curve."""
        if not self.curve:
            return None
        end = self.curve[-1]
        at = end.epoch * samples / self.samples if self.samples else math.nan
        return min(self.curve, key=lambda point: abs(point.epoch - at)).metric if at < end.epoch else end.metric


@dataclass(frozen=True)
class Entry:
    """A system that took part, with one attempt for each repetition."""

    system: str
    title: str  #: what people read for its name
    attempts: tuple[Attempt, ...] = ()
    learning_rate: float = 1.0  #: times the workload's own
    tried: tuple[tuple[float, float], ...] = ()  #: such factors, and the metric that each led to on another seed

    @property
    def finished(self) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.error is None)

    @property
    def error(self) -> str | None:
        """Why no attempt finished, if none did."""
        errors = [attempt.error for attempt in self.attempts if attempt.error is not None]
        return errors[0] if errors and not self.finished else None

    def mean(self, figure: Callable[[Attempt], float]) -> float:
        return fmean(map(figure, self.finished))

    @property
    def seconds(self) -> float:
        return self.mean(lambda attempt: attempt.seconds)

    @property
    def samples_per_s(self) -> float:
        return self.mean(lambda attempt: attempt.samples_per_s)

    @property
    def final(self) -> float | None:
        """The metric at the end, in the mean; None where nothing was measured."""
        finals = [attempt.curve[-1].metric for attempt in self.finished if attempt.curve]
        return fmean(finals) if finals else None

    @property
    def staleness(self) -> dict[int, int]:
        counts: Counter[int] = Counter()
        for attempt in self.finished:
            counts.update(dict(attempt.staleness))
        return dict(sorted(counts.items()))

    @property
    def late_share(self) -> float:
        return late_share(self.staleness)


@dataclass(frozen=True)
class Race:
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
        return self.interrupted or all(len(entry.attempts) >= self.settings.repeat for entry in self.entries)

    @property
    def finished(self) -> tuple[Entry, ...]:
        """Entries with at least one finished attempt."""
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
        """How many times faster than the baseline it did the same work; None without one that did any."""
        base = self.baseline.samples_per_s if self.baseline is not None else 0.0
        return entry.samples_per_s / base if base else None

    def target_times(self, entry: Entry) -> list[float]:
        """When each attempt reached the target; those that never did are left out."""
        if self.target is None:
            return []
        times = (attempt.seconds_to(self.target, self.metric) for attempt in entry.finished)
        return [seconds for seconds in times if seconds is not None]

    def seconds_to_target(self, entry: Entry) -> float | None:
        """In the mean; None if an attempt never was as good, or there is no target."""
        reached = self.target_times(entry)
        return fmean(reached) if reached and len(reached) == len(entry.finished) else None

    def metrics_of(self, entry: Entry) -> list[float]:
        """The metric of each attempt after equal samples: as many as the one with the fewest has trained on."""
        least = min(attempt.samples for other in self.finished for attempt in other.finished)
        return [value for attempt in entry.finished if (value := attempt.metric_after(least)) is not None]

    def learned_less(self, entry: Entry) -> bool:
        """Whether its model is worse at the end than the baseline's, or the best one, by more than chance."""
        known = [e for e in self.finished if e.final is not None and not math.isnan(e.final)]
        best = (max if self.metric.higher_is_better else min)(known, key=lambda e: e.final or 0.0, default=None)
        other = self.baseline or best
        if other not in known or other is None or other.final is None or entry.final is None:
            return False
        worse = other.final - entry.final if self.metric.higher_is_better else entry.final - other.final
        return not worse <= (AS_GOOD if self.metric.is_share else AS_GOOD_OF * abs(other.final))

    @property
    def overrun(self) -> float:
        """Of the system whose ranks computed longest, against what was asked for."""
        return max((entry.mean(lambda attempt: attempt.overrun) for entry in self.finished), default=1.0)

    @property
    def was_too_busy(self) -> bool:
        """Whether the machine had too little time for the ranks, so that nothing can be compared."""
        return self.overrun > BUSY

    @property
    def winner(self) -> Entry | None:
        """Of those that learned as much as the baseline, who was first at the target. Where nothing was measured, who
        was fastest. None where nobody can be said to have won."""
        if self.was_too_busy:
            return None
        if self.target is None:
            return max(self.finished, key=lambda entry: entry.samples_per_s, default=None)
        learned = [entry for entry in self.finished if not self.learned_less(entry)]
        timed = [(seconds, e) for e in learned if (seconds := self.seconds_to_target(e)) is not None]
        return min(timed, key=lambda pair: pair[0])[1] if timed else None


def attempt_of(
    attempt: Attempt,
    trace: Trace,
    samples: Sequence[float] = (),
    curve: Sequence[Point] = (),
    asked_s: Sequence[float] = (),
) -> Attempt:
    """The attempt with all that was recorded of it.

    `samples`, and the seconds that computing was asked to take, are those of each rank; without them every step counts
    as one, and took as long as asked. The curve's seconds are counted from rank 0's first step; without one, the loss
    while training stands for it.
    """
    ranks = list(trace.ranks.values())
    tallies = {rank.rank: rank.tally or _in_step(rank) for rank in ranks}
    shares = applied_shares(tallies)
    made = {r.rank: samples[r.rank] if samples else float(len(r.steps)) for r in ranks}
    results = tuple(_rank_result(r, tallies[r.rank], shares[r.rank], made[r.rank]) for r in ranks)
    if any(asked_s):
        results = tuple(replace(result, overrun=result.computed_s / asked_s[result.rank]) for result in results)
    staleness = tuple(staleness_of(tallies.values()).items())
    began_s = min(rank.steps[0].begin_ns for rank in ranks) / 1e9
    seconds = max(rank.end_ns for rank in ranks) / 1e9 - began_s
    losses = _losses(trace, began_s, seconds)
    late_s = ranks[0].steps[0].begin_ns / 1e9 - began_s
    points = [point._replace(seconds=point.seconds + late_s) for point in curve]
    points = points or [Point(loss.seconds, math.nan, loss.loss, loss.loss) for loss in losses]
    return replace(attempt, seconds=seconds, curve=tuple(points), losses=losses, staleness=staleness, ranks=results)


def _rank_result(rank: RankTrace, tally: Tally, share: float, samples: float) -> RankResult:
    begin_ns = rank.steps[0].begin_ns
    paused_s = sum(pause.end_ns - pause.begin_ns for pause in rank.pauses if pause.begin_ns >= begin_ns) / 1e9
    return RankResult(
        rank=rank.rank,
        steps=len(rank.steps),
        samples=samples,
        seconds=(rank.end_ns - begin_ns) / 1e9,
        computed_s=sum(step.compute_s for step in rank.steps),
        waited_s=sum(step.waited_s for step in rank.steps) + paused_s,
        on_time=tally.on_time,
        carried=tally.carried,
        dropped=tally.dropped,
        share=share,
    )


def _in_step(rank: RankTrace) -> Tally:
    """What is never late: every step of a system that waits for everybody."""
    steps = len(rank.steps)
    return Tally(applied=((0, steps),), on_time=steps, carried=0, dropped=0)


def _losses(trace: Trace, began_s: float, seconds: float) -> tuple[Losses, ...]:
    """Of all ranks, in equal spans of time that are as many as the steps of one rank, up to a limit."""
    given = [(s.ready_ns / 1e9 - began_s, s.loss) for r in trace.ranks.values() for s in r.steps if s.loss is not None]
    spans = min(LOSSES, max(len(rank.steps) for rank in trace.ranks.values()))
    width_s = seconds / spans
    bins: dict[int, list[tuple[float, float]]] = {}
    for at_s, loss in given:
        bins.setdefault(min(spans - 1, int(at_s / width_s)) if width_s else 0, []).append((at_s, loss))
    return tuple(Losses(*map(fmean, zip(*found, strict=True))) for _, found in sorted(bins.items()))
