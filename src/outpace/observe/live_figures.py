"""The running figures of a job: from the records of each rank to what is shown. Pure: records and the time in.

Owns how much is remembered of a rank, what is shown of it, and who is late.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from statistics import fmean, median
from typing import Any, NamedTuple

from outpace.observe.figures import staleness_in
from outpace.observe.reader import RecordReader, clocks_of, newest_of
from outpace.observe.schema import Cut, Elsewhere, Finished, Header, Pausing, Record, Step, Synchronized, TracedRound

KEPT_STEPS = 256
KEPT_ROUNDS = 128
RECENT_STEPS = 20  #: that means are taken of
WINDOW_NS = 5 * 10**9  #: that speeds are taken of, or as much of it as is remembered
FEWEST_STEPS = 5  #: that a speed is taken of, if so many are known: slow ones take longer than the window
UNSEEN_NS = 600_000_000  #: a rank writes every half a second, so some ranks' younger records may be missing

OVERDUE = 1.5  #: times the usual step
WRITING_S = UNSEEN_NS / 1e9  #: a step may have ended so long ago, unknown to us
NOTABLE_SHARE = 0.1  #: of a step: gradients that are ready so much later than the first rank's are late
NOTABLE_MS = 1.0
WORTH_SAYING_S = 1.0  #: in all, in one place's collectives that are not outpace's

ENDED = ("finished", "stopped", "cut")

_AT = attrgetter("at_ns")


# -- what is shown ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankLive:
    """One rank. Times are on the monotonic clock of the first rank's host; figures are of its last steps."""

    rank: int
    host: str
    state: str  #: "starting", "running", "synchronize", "finish" (waits there), "finished", "stopped" (ended
    #: without finish()), "cut" (records no more)
    steps: int  #: so far: the number of its last one
    begin_ns: int | None  #: of the last step, as `ready_ns` and `end_ns`
    ready_ns: int | None
    end_ns: int | None
    compute_ms: float | None  #: mean of the last steps, as `waited_ms`
    waited_ms: float | None
    step_ms: float | None  #: what a step usually takes, from begin to end
    into_step_s: float | None  #: since its last step, or pause, ended; None while it pauses or after its end
    steps_per_s: float
    samples_per_s: float | None
    loss: float | None  #: of the last step that had one
    late_rounds: int  #: rounds decided while its last step was computed, or since then, if these are more
    late_ms: float | None  #: its gradients were ready so long after the first rank's, where all wait for all
    share: float | None  #: of the contributions in all rounds seen

    @property
    def takes_steps(self) -> bool:
        return self.state not in ("finish", *ENDED)

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True)
class Live:
    """A running job, as its files show it."""

    directory: str
    strategy: str
    world: int | None  #: None before the first header
    ranks: tuple[RankLive, ...]  #: in order; those without a file yet are missing
    seconds: float  #: from the first thing that was read to the last
    rounds: int | None  #: decided so far; None where there are none
    rounds_per_s: float | None
    staleness: dict[int, int]  #: of recent rounds: rounds late -> how many contributions
    loss: float | None  #: mean over the last ones of the ranks that still take steps, or of all if none does
    samples_per_s: float | None  #: of the same ranks together
    late_rank: int | None  #: who is late now
    late_words: str  #: who, and by how much, in words
    elsewhere_words: str  #: where ranks wait for each other most in collectives that are not outpace's, if they do
    silent_s: float | None  #: since the last record of any rank; None if there was none
    skipped: int  #: unreadable lines
    lost: int  #: records that a slow disk left no room for

    @property
    def has_begun(self) -> bool:
        return any(rank.steps for rank in self.ranks)

    @property
    def has_ended(self) -> bool:
        """Whether all ranks have finished, or record no more."""
        return self.world is not None and len(self.ranks) >= self.world and all(r.has_ended for r in self.ranks)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "has_ended": self.has_ended}


# -- what is remembered -----------------------------------------------------------------------------------------------


class RankState:
    """One rank's latest records, and counts. Depends on the records alone, not on when they came."""

    def __init__(self, reader: RecordReader) -> None:
        self.reader = reader  #: where the records come from
        self.steps: deque[Step] = deque(maxlen=KEPT_STEPS)
        self.rounds: deque[TracedRound] = deque(maxlen=KEPT_ROUNDS)  #: that it recorded
        self.given: Counter[int] = Counter()  #: contributions of each rank, in all rounds that it recorded
        self.state = "starting"
        self.loss: float | None = None
        self.elsewhere: dict[str, Elsewhere] = {}  #: call site -> its latest
        self.first_ns: int | None = None
        self.last_ns: int | None = None  #: the latest moment in any record
        self.since_ns: int | None = None  #: it has been computing since

    @property
    def header(self) -> Header | None:
        return self.reader.header

    def take(self, record: Record) -> None:
        if isinstance(record, Header):  # what an earlier incarnation was doing no longer counts
            self.steps.clear()
            self.state, self.since_ns = "running", None
        elif isinstance(record, TracedRound):
            self.rounds.append(record)
            self.given.update(given.rank for given in record.contributions)
            self._saw(record.at_ns, record.at_ns)
        elif isinstance(record, (Step, Synchronized)):
            if isinstance(record, Step):
                self.steps.append(record)
                self.loss = record.loss if record.loss is not None else self.loss
            self.state, self.since_ns = "running", record.end_ns
            self._saw(record.begin_ns, record.end_ns)
        elif isinstance(record, Pausing):
            self.state, self.since_ns = record.name, None
            self._saw(record.begin_ns, record.begin_ns)
        elif isinstance(record, Finished):
            is_ours = bool(self.steps) and self.steps[-1].version is not None  # other loops have no finish() to call
            self.state, self.since_ns = "stopped" if is_ours and record.begin_ns is None else "finished", None
            self._saw(record.at_ns, record.at_ns)
        elif isinstance(record, Elsewhere):
            self.elsewhere[record.site] = record
        elif isinstance(record, Cut):
            self.state, self.since_ns = "cut", None

    def _saw(self, begin_ns: int, end_ns: int) -> None:
        self.first_ns = begin_ns if self.first_ns is None else min(self.first_ns, begin_ns)
        self.last_ns = end_ns if self.last_ns is None else max(self.last_ns, end_ns)


# -- figures ----------------------------------------------------------------------------------------------------------


class _Run(NamedTuple):
    """What the ranks' figures are compared with. All on one clock."""

    now_ns: int
    rounds: list[TracedRound]  #: recent ones, in order of time
    given: Counter[int]  #: contributions of each rank
    late_ms: dict[int, float]


def live_of(directory: str, states: dict[int, RankState], now_ns: int) -> Live:
    """What these states show at that time, on the clock of the first rank."""
    shifts = _shifts(states)
    run = _run(states, shifts, now_ns)
    ranks = tuple(_rank(rank, state, shifts[rank], run) for rank, state in states.items())
    active = [rank for rank in ranks if rank.takes_steps] or ranks
    newest = newest_of(state.header for state in states.values())
    moments = _moments(states, shifts)
    silent_s = max(0.0, (now_ns - moments[-1]) / 1e9) if moments else None
    late_rank, late_words = _who_is_late(ranks, silent_s)
    return Live(
        directory=directory,
        strategy=newest.strategy if newest else "unknown",
        world=newest.world if newest else None,
        ranks=ranks,
        seconds=(moments[-1] - moments[0]) / 1e9 if moments else 0.0,
        rounds=max((r.number for r in run.rounds), default=-1) + 1 if run.rounds else None,
        rounds_per_s=_rounds_per_s(run, goes_on=any(rank.takes_steps for rank in ranks)),
        staleness=staleness_in(_recent(run.rounds, run.rounds[-1].at_ns)) if run.rounds else {},
        loss=_of_known(fmean, (rank.loss for rank in active)),
        samples_per_s=_of_known(sum, (rank.samples_per_s for rank in active)),
        late_rank=late_rank,
        late_words=late_words,
        elsewhere_words=_elsewhere_words(states),
        silent_s=silent_s,
        skipped=sum(state.reader.skipped for state in states.values()),
        lost=sum(state.reader.lost for state in states.values()),
    )


def _elsewhere_words(states: dict[int, RankState]) -> str:
    """The rank that waited longest, and where."""
    waits = [(each.seconds, rank, each) for rank, state in states.items() for each in state.elsewhere.values()]
    if not waits:
        return ""
    _, rank, longest = max(waits, key=lambda wait: wait[:2])
    return f"rank {rank} has waited {longest}: not a call of outpace's" if longest.seconds >= WORTH_SAYING_S else ""


def _shifts(states: dict[int, RankState]) -> dict[int, int]:
    """What to add to a rank's times to have them on the clock of the first rank that has a header."""
    headers = [state.header for state in states.values()]
    clocks = clocks_of(headers)
    first = next((clock for clock, header in zip(clocks, headers, strict=True) if header is not None), 0)
    return {rank: clock - first for rank, clock in zip(states, clocks, strict=True)}


def _run(states: dict[int, RankState], shifts: dict[int, int], now_ns: int) -> _Run:
    rounds = _rounds(states, shifts)
    given: Counter[int] = Counter()
    for state in states.values():
        given.update(state.given)
    recent = rounds[-RECENT_STEPS:]
    waits_for_all = all(len(r.contributions) == r.world and _is_fresh(r) for r in recent)
    return _Run(now_ns, rounds, given, _late_ms(states, shifts) if waits_for_all else {})


def _rounds(states: dict[int, RankState], shifts: dict[int, int]) -> list[TracedRound]:
    """Recent rounds in order of time, from where on all that were recorded are still remembered."""
    rounds = [r.shifted(shifts[rank]) if shifts[rank] else r for rank, s in states.items() for r in s.rounds]
    rounds.sort(key=attrgetter("at_ns", "number"))
    full = [s.rounds[0].at_ns + shifts[rank] for rank, s in states.items() if len(s.rounds) == KEPT_ROUNDS]
    return rounds[bisect_left(rounds, max(full, default=0), key=_AT) :][-KEPT_ROUNDS:]


def _is_fresh(taken: TracedRound) -> bool:
    return all(given.version == taken.number for given in taken.contributions)


def _late_ms(states: dict[int, RankState], shifts: dict[int, int]) -> dict[int, float]:
    """How much later than the first rank's each rank's gradients were ready, in the last step that all have made."""
    steps = {rank: state.steps for rank, state in states.items() if state.steps}
    if len(steps) < 2:
        return {}
    number = min(of_rank[-1].number for of_rank in steps.values())
    ready = {rank: _ready_ns(of_rank, number) for rank, of_rank in steps.items()}
    known = {rank: ns + shifts[rank] for rank, ns in ready.items() if ns is not None}
    return {rank: (ns - min(known.values())) / 1e6 for rank, ns in known.items()} if len(known) == len(steps) else {}


def _ready_ns(steps: Sequence[Step], number: int) -> int | None:
    return next((step.ready_ns for step in reversed(steps) if step.number == number), None)


def _rank(rank: int, state: RankState, shift: int, run: _Run) -> RankLive:
    steps = list(state.steps)
    last, recent = (steps[-1] if steps else None), steps[-RECENT_STEPS:]
    now_ns = run.now_ns - shift
    contributions = run.given.total()
    steps_per_s, samples_per_s = _speeds(steps, now_ns, state.state)
    return RankLive(
        rank=rank,
        host=state.header.host if state.header else "unknown",
        state=state.state,
        steps=last.number if last else 0,
        begin_ns=last.begin_ns + shift if last else None,
        ready_ns=last.ready_ns + shift if last else None,
        end_ns=last.end_ns + shift if last else None,
        compute_ms=_of_known(fmean, (step.compute_s * 1000 for step in recent)),
        waited_ms=_of_known(fmean, (step.waited_s * 1000 for step in recent)),
        step_ms=median((step.end_ns - step.begin_ns) / 1e6 for step in recent) if recent else None,
        into_step_s=max(0.0, (now_ns - state.since_ns) / 1e9) if state.since_ns is not None else None,
        steps_per_s=steps_per_s,
        samples_per_s=samples_per_s,
        loss=state.loss,
        late_rounds=_late_rounds(last, state, shift, run),
        late_ms=run.late_ms.get(rank),
        share=run.given[rank] / contributions if contributions else None,
    )


def _speeds(steps: list[Step], now_ns: int, state: str) -> tuple[float, float | None]:
    """Steps and samples per second. They fall while nothing comes, once that cannot be the writing alone."""
    if not steps:
        return 0.0, None
    until_ns = max(steps[-1].end_ns, now_ns - UNSEEN_NS) if state == "running" else steps[-1].end_ns
    first = max(0, len(steps) - FEWEST_STEPS)
    while first > 0 and steps[first - 1].begin_ns >= until_ns - WINDOW_NS:
        first -= 1
    seconds = max(1, until_ns - steps[first].begin_ns) / 1e9
    samples = [step.samples for step in steps[first:] if step.samples is not None]
    if all(count == 1 for count in samples):  # nobody told their number, and each step counts for one
        samples = []
    return (len(steps) - first) / seconds, sum(samples) / seconds if samples else None


def _late_rounds(last: Step | None, state: RankState, shift: int, run: _Run) -> int:
    """By its last step, or by what was decided since, without it. Of the latest moments not all is written yet."""
    if last is None or last.round is None or state.since_ns is None:
        return 0
    since_ns, until_ns = state.since_ns + shift, run.now_ns - UNSEEN_NS
    begin = bisect_right(run.rounds, since_ns, key=_AT)
    end = bisect_right(run.rounds, until_ns, key=_AT)
    return max(last.late or 0, sum(r.number > last.round for r in run.rounds[begin:end]))


def _rounds_per_s(run: _Run, goes_on: bool) -> float | None:
    if len(run.rounds) < 2:
        return None
    last_ns = run.rounds[-1].at_ns
    until_ns = max(last_ns, run.now_ns - UNSEEN_NS) if goes_on else last_ns
    recent = _recent(run.rounds, until_ns)
    return (len(recent) - 1) / (max(1, until_ns - recent[0].at_ns) / 1e9)


def _recent(rounds: list[TracedRound], until_ns: int) -> list[TracedRound]:
    inside = bisect_right(rounds, until_ns - WINDOW_NS, key=_AT)
    return rounds[min(inside, max(0, len(rounds) - FEWEST_STEPS)) :]


def _moments(states: dict[int, RankState], shifts: dict[int, int]) -> list[int]:
    firsts = [state.first_ns + shifts[rank] for rank, state in states.items() if state.first_ns is not None]
    lasts = [state.last_ns + shifts[rank] for rank, state in states.items() if state.last_ns is not None]
    return sorted(firsts + lasts)


def _of_known(figure: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return figure(known) if known else None


# -- who is late ------------------------------------------------------------------------------------------------------


def _who_is_late(ranks: Sequence[RankLive], silent_s: float | None) -> tuple[int | None, str]:
    """The rank that is furthest behind, and why in words; nobody, if the others go no further either."""
    active = [rank for rank in ranks if not rank.has_ended]
    if not ranks:
        return None, "no rank has recorded anything yet"
    if not active:
        return None, "all ranks that recorded have finished"
    overdue = [rank for rank in active if _is_overdue(rank)]
    if silent_s is not None and overdue and len(overdue) == sum(rank.steps > 0 for rank in active):
        usual_s = max(rank.step_ms or 0.0 for rank in overdue) / 1000
        return None, f"no rank has finished a step for {silent_s:.1f} s; one usually takes {_seconds(usual_s)}"
    return _furthest_behind(overdue, active)


def _furthest_behind(overdue: Sequence[RankLive], active: Sequence[RankLive]) -> tuple[int | None, str]:
    if overdue:
        worst = max(overdue, key=_overdue_by)
        into, usual = f"{worst.into_step_s or 0.0:.1f} s", _seconds((worst.step_ms or 0.0) / 1000)
        return worst.rank, f"rank {worst.rank} is late: {into} into a step that usually takes {usual}"
    behind = max(active, key=lambda rank: (rank.late_rounds, rank.compute_ms or 0.0))
    if behind.late_rounds:
        rounds = "1 round" if behind.late_rounds == 1 else f"{behind.late_rounds} rounds"
        return behind.rank, f"rank {behind.rank} is late: {rounds} behind"
    after = max(active, key=lambda rank: rank.late_ms or 0.0)
    if (after.late_ms or 0.0) > max(NOTABLE_MS, NOTABLE_SHARE * (after.step_ms or 0.0)):
        by = _seconds((after.late_ms or 0.0) / 1000)
        return after.rank, f"rank {after.rank} is late: its gradients were ready {by} after the first rank's"
    return None, "no rank is late"


def _is_overdue(rank: RankLive) -> bool:
    if rank.into_step_s is None or rank.step_ms is None:
        return False
    return rank.into_step_s > OVERDUE * rank.step_ms / 1000 + WRITING_S


def _overdue_by(rank: RankLive) -> float:
    return (rank.into_step_s or 0.0) / max(1e-6, (rank.step_ms or 0.0) / 1000)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1000:.0f} ms"
