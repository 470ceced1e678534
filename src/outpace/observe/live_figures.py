"""From what is remembered of each rank to what is shown of the run. Pure: states and the time in, a `Live` out."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from statistics import fmean, median
from typing import NamedTuple

from outpace.observe.live_late import who_is_late
from outpace.observe.live_rank import KEPT_ROUNDS, RankState
from outpace.observe.live_values import Live, RankLive
from outpace.observe.trace import Step, TracedRound
from outpace.observe.trace_reader import is_same_machine

RECENT_STEPS = 20  #: that means are taken of
WINDOW_NS = 5 * 10**9  #: that speeds are taken of, or of as much of it as is remembered
FEWEST_STEPS = 5  #: that a speed is taken of, if so many are known: slow ones take longer than the window
UNSEEN_NS = 600_000_000  #: a rank writes every half a second, so that what is younger may be missing of some

_AT = attrgetter("at_ns")


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
    lives = [state.life for state in states.values() if state.life is not None]
    newest = max(lives, key=lambda life: life.unix_ns, default=None)
    moments = _moments(states, shifts)
    silent_s = max(0.0, (now_ns - moments[-1]) / 1e9) if moments else None
    late_rank, late_words = who_is_late(ranks, silent_s)
    return Live(
        directory=directory,
        strategy=newest.strategy if newest else "unknown",
        world=newest.world if newest else None,
        ranks=ranks,
        seconds=(moments[-1] - moments[0]) / 1e9 if moments else 0.0,
        rounds=max((r.number for r in run.rounds), default=-1) + 1 if run.rounds else None,
        rounds_per_s=_rounds_per_s(run, goes_on=any(rank.takes_steps for rank in ranks)),
        staleness=_staleness(run.rounds),
        loss=_mean(rank.loss for rank in active),
        samples_per_s=_total(rank.samples_per_s for rank in active),
        late_rank=late_rank,
        late_words=late_words,
        silent_s=silent_s,
        skipped=sum(state.skipped for state in states.values()),
        lost=sum(state.lost for state in states.values()),
    )


def _shifts(states: dict[int, RankState]) -> dict[int, int]:
    """What to add to a rank's times to have them on the first one's clock."""
    first = next((state.life for state in states.values() if state.life is not None), None)
    shifts = {}
    for rank, life in ((rank, state.life) for rank, state in states.items()):
        is_alike = first is None or life is None or is_same_machine(life, first)
        shifts[rank] = 0 if first is None or life is None or is_alike else life.clock_ns - first.clock_ns
    return shifts


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
        host=state.life.host if state.life else "unknown",
        state=state.state,
        steps=last.number if last else 0,
        begin_ns=last.begin_ns + shift if last else None,
        ready_ns=last.ready_ns + shift if last else None,
        end_ns=last.end_ns + shift if last else None,
        compute_ms=_mean(step.compute_s * 1000 for step in recent),
        waited_ms=_mean(step.waited_s * 1000 for step in recent),
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
    goes_on = state == "running"
    until_ns = max(steps[-1].end_ns, now_ns - UNSEEN_NS) if goes_on else steps[-1].end_ns
    first = max(0, len(steps) - FEWEST_STEPS)
    while first > 0 and steps[first - 1].begin_ns >= until_ns - WINDOW_NS:
        first -= 1
    seconds = max(1, until_ns - steps[first].begin_ns) / 1e9
    samples = [step.samples for step in steps[first:] if step.samples is not None]
    return (len(steps) - first) / seconds, sum(samples) / seconds if samples else None


def _late_rounds(last: Step | None, state: RankState, shift: int, run: _Run) -> int:
    """By its last step, or by what was decided since, without it. Of the latest moments not all is written yet."""
    if last is None or last.round is None or state.since_ns is None:
        return 0
    since_ns, until_ns = state.since_ns + shift, run.now_ns - UNSEEN_NS
    begin = bisect_right(run.rounds, since_ns, key=_AT)
    end = bisect_right(run.rounds, until_ns, key=_AT)
    return max(last.late, sum(r.number > last.round for r in run.rounds[begin:end]))


def _rounds_per_s(run: _Run, goes_on: bool) -> float | None:
    if len(run.rounds) < 2:
        return None
    last_ns = run.rounds[-1].at_ns
    until_ns = max(last_ns, run.now_ns - UNSEEN_NS) if goes_on else last_ns
    recent = _recent(run.rounds, until_ns)
    seconds = max(1, until_ns - recent[0].at_ns) / 1e9
    return (len(recent) - 1) / seconds


def _recent(rounds: list[TracedRound], until_ns: int) -> list[TracedRound]:
    inside = bisect_right(rounds, until_ns - WINDOW_NS, key=_AT)
    return rounds[min(inside, max(0, len(rounds) - FEWEST_STEPS)) :]


def _staleness(rounds: list[TracedRound]) -> dict[int, int]:
    if not rounds:
        return {}
    recent = _recent(rounds, rounds[-1].at_ns)
    counts = Counter(max(0, taken.number - given.version) for taken in recent for given in taken.contributions)
    return dict(sorted(counts.items()))


def _moments(states: dict[int, RankState], shifts: dict[int, int]) -> list[int]:
    """In order, the first and last things that were heard of each rank."""
    firsts = [state.first_ns + shifts[rank] for rank, state in states.items() if state.first_ns is not None]
    lasts = [state.last_ns + shifts[rank] for rank, state in states.items() if state.last_ns is not None]
    return sorted(firsts + lasts)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
