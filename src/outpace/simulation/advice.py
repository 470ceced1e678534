"""Advice from a trace: what waiting costs now, what each strategy would gain, and which one to take.

Owns the rule that chooses and its reasons in words. The figures come from replaying the trace in simulated time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean, median_low

from outpace.errors import TraceInvalid
from outpace.imbalance.models import RecordedTimes
from outpace.observe.figures import (
    apply_s,
    communication_s,
    compute_s,
    data_is_shared,
    explained_by_samples,
    slow_share,
    slowest_rank,
    steady,
    waiting_s,
)
from outpace.observe.schema import Trace
from outpace.simulation.scenario import BALANCED, BOTH, SHARED, SPLIT, Scenario
from outpace.simulation.timing import BASELINE, Standing, Timing, full_round_s, simulate_timing

#: The baseline, and what could take its place, from the least stale to the most.
COMPARED = (BASELINE, "eager:quorum=0.75", "eager-majority", "eager-solo")
STAY = "stay with what waits for all"

WORTH_IT = 1.05  #: a gain below this is not worth any staleness
CLOSE = 0.95  #: of two strategies, the less stale one is taken if it is this close to the faster
CLOSE_WITHOUT_LATENESS = 0.9  #: likewise of equal batches with the strategy that waits for all, where nothing is late
APPLIED = 0.98  #: a strategy that drops more than the rest of this loses data
SLOWER = 1.2  #: a rank that computes so much longer than the median is named
ALWAYS = 0.9  #: of the steps: a rank that is so often slower is slow step after step
FAIR = 0.5  #: a rank that has less than this of its fair share is hardly heard
MOST_STEPS = 100_000  #: simulated at most in one run, over all ranks: a few seconds
EXPLAINED = 0.7  #: a correlation above this: it is the data that make steps take longer or shorter
SHORT = 100  #: steps of a rank below which a trace says little


@dataclass(frozen=True)
class Present:
    """What the trace shows of the run itself, in seconds of a step of a rank, in the mean."""

    step_s: float
    compute_s: float
    waiting_s: float  #: for other ranks
    communication_s: float
    slowest: int  #: the rank that computes longest
    slowest_over_median: float
    slow_steps_share: float | None  #: of the steps, those in which it is slower than the median by `SLOWER`

    @property
    def waiting_share(self) -> float:
        return self.waiting_s / self.step_s if self.step_s else 0.0


@dataclass(frozen=True)
class Advice:
    """One recommendation, and what it rests on."""

    recommended: str  #: a strategy's name, or STAY
    reasons: tuple[str, ...]  #: in words, the first one decides
    present: Present
    standing: Standing  #: of the strategies, the baseline first, when the trace is replayed
    shared: Standing  #: the same if the ranks took their work from one pool, which is another thing only if it is split
    first: str  #: what to do first, in words: about the data, or to take what is recommended
    data: str  #: how data are divided then
    gain: float  #: the speed-up of that over waiting for all as it is now
    skipped: tuple[str, ...]  #: what of the trace was not used, in words


def advise(
    trace: Trace, data: str | None = None, simulate: Callable[[str, Scenario], Timing] = simulate_timing
) -> Advice:
    """What to do about the imbalance that a trace shows, for ranks whose data are split or shared (see `Scenario`): as
    the trace shows unless told.

    Blocks for a few seconds; `simulate` runs one strategy.
    """

    def replay(scenario: Scenario) -> Standing:
        return Standing(scenario, [simulate(name, scenario) for name in COMPARED])

    scenario, present = replayed(trace, data or data_of(trace)), present_of(trace)
    standing = replay(scenario)
    shared = replay(replace(scenario, data=SHARED)) if scenario.data == SPLIT else standing
    explained = explained_by_samples(trace) or 0.0
    others = {SHARED: shared} if scenario.data == SPLIT else {}
    if explained >= EXPLAINED:
        equal = [BALANCED, BOTH] if scenario.data == SPLIT else [BOTH] if scenario.data == SHARED else []
        others = {**{name: replay(replace(scenario, data=name)) for name in equal}, **others}
    chosen = _chosen(standing)
    recommended = chosen.strategy if chosen else STAY
    first, data, gain = _first(standing, others, recommended)
    reasons = tuple(_reasons(trace, present, standing, shared))
    return Advice(recommended, reasons, present, standing, shared, first, data, gain, trace.skipped)


def data_of(trace: Trace) -> str:
    """How the recorded ranks divided their data."""
    return SHARED if data_is_shared(trace) else SPLIT


def _first(standing: Standing, others: dict[str, Standing], recommended: str) -> tuple[str, str, float]:
    """What to do first, how data are divided then, and the speed-up: the least that comes close to the best."""
    now = standing.runs[0].throughput
    best = {name: _chosen(other) or other.runs[0] for name, other in others.items()}
    own = _chosen(standing) or standing.runs[0]
    gains = {standing.scenario.data: own.throughput / now, **{name: run.throughput / now for name, run in best.items()}}
    if BALANCED in best:  # alone: with the strategy that waits for all
        gains[BALANCED] = others[BALANCED].runs[0].throughput / now
    most = max(gains.values())
    order = [name for name in (BALANCED, standing.scenario.data, SHARED, BOTH) if name in gains]
    close = dict.fromkeys(order, CLOSE) | {BALANCED: CLOSE_WITHOUT_LATENESS}
    enough = (name for name in order if gains[name] >= max(WORTH_IT, close[name] * most))
    data = next(enough, standing.scenario.data)
    words = {
        BALANCED: "balance the batches first: outpace.data.LengthBalancedBatches, with the strategy that you have",
        SHARED: f"share the data: outpace.data.SharedSampler, with {_name(best.get(SHARED))}",
        BOTH: f"balance the batches and share them: outpace.data.LengthBalancedBatches, with {_name(best.get(BOTH))}",
    }
    return recommended if data == standing.scenario.data else words[data], data, gains[data]


def _name(run: Timing | None) -> str:
    return "" if run is None else run.strategy


def present_of(trace: Trace) -> Present:
    computing, slowest = compute_s(trace), slowest_rank(trace)
    return Present(
        step_s=fmean(fmean((step.end_ns - step.begin_ns) / 1e9 for step in steady(r)) for r in trace.ranks.values()),
        compute_s=fmean(computing.values()),
        waiting_s=fmean(waiting_s(trace).values()),
        communication_s=communication_s(trace),
        slowest=slowest,
        slowest_over_median=computing[slowest] / (median_low(computing.values()) or 1.0),
        slow_steps_share=slow_share(trace, slowest, SLOWER),
    )


def replayed(trace: Trace, data: str) -> Scenario:
    """The recorded ranks as a scenario. Raises `TraceInvalid` where there is nothing to replay."""
    if trace.world < 2:
        raise TraceInvalid("this trace is of a single rank, which waits for nobody: record a run of two or more")
    if not any(compute_s(trace).values()):
        raise TraceInvalid("no rank of this trace ever computed: it was not recorded around a training loop")
    steps = max(len(rank.steps) for rank in trace.ranks.values())
    return Scenario(
        ranks=trace.world,
        steps=max(2, min(steps, MOST_STEPS // trace.world)),
        imbalance=RecordedTimes.of(trace),
        payload_mb=trace.payload_bytes / 1e6,
        network=f"fixed:round_ms={communication_s(trace) * 1e3:.6f}",
        apply_ms=fmean(apply_s(trace).values()) * 1e3,
        data=data,
    )


def possible(standing: Standing) -> float:
    """The speed-up over waiting for everybody if nobody ever waited for another rank.

    They communicate and apply as now; a late rank may not even wait for the former: no less than the fastest run.
    """
    scenario = standing.scenario
    added_s = full_round_s(scenario) + scenario.apply_ms / 1e3
    paces = [1 / (compute_s + added_s) for compute_s in standing.compute_s]
    together = scenario.ranks * min(paces) if scenario.is_split else sum(paces)
    return max(together / standing.runs[0].throughput, *map(standing.speedup, standing.runs))


def _sound(standing: Standing) -> list[Timing]:
    """The runs that lose next to nothing, the least stale strategy first. The baseline is not among them."""
    return [run for run in standing.runs[1:] if run.applied_share >= APPLIED]


def _fastest(standing: Standing, runs: Iterable[Timing]) -> Timing | None:
    """If it is worth it."""
    worth_it = (run for run in runs if standing.speedup(run) >= WORTH_IT)
    return max(worth_it, key=standing.speedup, default=None)


def _chosen(standing: Standing) -> Timing | None:
    """The least stale strategy that is about as fast as the fastest, if any is worth it."""
    sound = _sound(standing)
    fastest = _fastest(standing, sound)
    if fastest is None:
        return None
    enough = max(WORTH_IT, CLOSE * standing.speedup(fastest))
    return next(run for run in sound if standing.speedup(run) >= enough)


# -- in words ---------------------------------------------------------------------------------------------------------


def _reasons(trace: Trace, present: Present, standing: Standing, shared: Standing) -> Iterator[str]:
    """Why this is recommended, the first one decides; then what else one should know before one believes it."""
    chosen = _chosen(standing)
    recorded = len(trace.ranks)
    as_far_as = "" if recorded == trace.world else f"as far as {recorded} of {trace.world} ranks can show, "
    waiting = f"waiting for others costs {present.waiting_share:.0%} of a step now"
    if chosen is None:
        yield as_far_as + _why_stay(waiting, present, standing, shared)
    else:
        most = f"of the {possible(standing):.2f}x that is possible if nobody ever waited"
        yield f"{as_far_as}{waiting}. {_in_words(standing, chosen)}, {most}"
        fastest = _fastest(standing, _sound(standing))
        if fastest is not None and chosen is not fastest:
            yield f"{_in_words(standing, fastest)}: hardly faster, and staler"
    yield from _about_sharing(standing, shared)
    yield from _about_slowest(trace, present)
    if chosen is not None:
        yield from _about_chosen(trace, standing, chosen)
    elif trace.strategy == "ddp" and possible(shared) < WORTH_IT:
        yield (
            "DDP may hide it: with buffers (BatchNorm) it also waits in forward, and when gradients are accumulated in "
            "every backward, which looks like computing; to be sure, record once more with "
            "DistributedDataParallel(..., forward_sync_buffers=False), and accumulate under no_sync()"
        )
    yield from _about_trace(trace, present)


def _why_stay(waiting: str, present: Present, standing: Standing, shared: Standing) -> str:
    gain = possible(standing)
    if gain < WORTH_IT:
        at_most = f"even if nobody ever waited you would gain {max(0.0, gain - 1):.0%}"
        if possible(shared) < WORTH_IT:
            return f"your ranks are balanced: stay with DDP. {waiting.capitalize()}, and {at_most}"
        return (
            f"stay with DDP: {waiting}, but the data are split, rank {present.slowest} has as many steps to make as "
            f"the others and computes {present.slowest_over_median:.2f}x as long as the median rank: the run lasts "
            f"until it has made them, and {at_most}"
        )
    best = max(map(standing.speedup, _sound(standing)), default=1.0)
    words = f"stay with DDP: {waiting}, but no strategy gains more than {max(0.0, best - 1):.0%} on it here"
    lossy = _fastest(standing, standing.runs[1:])
    if lossy is None:
        return words
    faster = f"{lossy.strategy}, {standing.speedup(lossy):.2f}x as fast"
    return f"{words} without dropping contributions: {faster}, would drop {1 - lossy.applied_share:.0%} of them"


def _in_words(standing: Standing, run: Timing) -> str:
    late = f"{run.late_share:.0%} of the contributions late (99 % by at most {run.staleness_of(0.99)} rounds)"
    return f"{run.strategy} would be {standing.speedup(run):.2f}x as fast as waiting for all, with {late}"


def _about_sharing(standing: Standing, shared: Standing) -> Iterator[str]:
    """What one pool would change, if that is worth a word."""
    other = _chosen(shared)
    most = max([1.0, *map(standing.speedup, _sound(standing))])
    if standing.scenario.is_split and other is not None and shared.speedup(other) >= WORTH_IT * most:
        pool = "if they took their mini-batches from one pool, and whoever is free the next"
        yield f"DistributedSampler gives each rank a part of the data; {pool}, {_in_words(shared, other)}"


def _about_slowest(trace: Trace, present: Present) -> Iterator[str]:
    if present.slowest_over_median < SLOWER:
        return
    who = f"rank {present.slowest} (host {trace.ranks[present.slowest].host})"
    words = f"{who} computes {present.slowest_over_median:.2f}x as long as the median rank"
    if present.slow_steps_share is None:
        yield f"{words} in the mean; no step was recorded by all ranks, so it is unknown how often"
    elif present.slow_steps_share >= ALWAYS:
        yield f"{words}, step after step: look at that machine first"
    else:
        yield (
            f"{words} in the mean, but is the slower one in only {present.slow_steps_share:.0%} of the steps: look for "
            "what happens in these (longer data, pauses, another process) before you blame the machine"
        )


def _about_chosen(trace: Trace, standing: Standing, chosen: Timing) -> Iterator[str]:
    if standing.fair_part(chosen) < FAIR:
        share = f"{standing.fair_part(chosen):.0%} of its fair share of the contributions"
        yield f"the slowest rank would have {share}: where ranks hold different data, its data count less"
    if trace.strategy == chosen.strategy:
        yield f"{chosen.strategy} is what this run was recorded with: keep it"


def _about_trace(trace: Trace, present: Present) -> Iterator[str]:
    if present.communication_s > present.compute_s / 4:
        share = present.communication_s / present.step_s
        yield f"communication itself costs {share:.0%} of a step; no strategy here reduces that"
    missing = trace.world - len(trace.ranks)
    if missing:
        words = "the others stand in for them, so what only they do is not seen"
        yield f"{missing} of {trace.world} ranks left no trace; {words}"
    shortest = min(len(rank.steps) for rank in trace.ranks.values())
    if shortest < SHORT:
        yield f"a rank has only {shortest} steps: record {SHORT} or more before you decide"
