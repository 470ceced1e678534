"""Advice from a trace: what waiting costs now, what each strategy would gain, and which one to take.

Owns the rule that chooses and its reasons in words. The figures come from replaying the trace in simulated time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean, median_low

from outpace.errors import TraceInvalid
from outpace.imbalance.recorded import Replay
from outpace.observe.trace import Trace
from outpace.observe.trace_figures import apply_s, communication_s, compute_s, steady, waiting_s
from outpace.simulation.run import Timing
from outpace.simulation.scenario import Scenario
from outpace.simulation.standing import BASELINE, Standing
from outpace.simulation.timing import full_round_s, simulate_timing

#: The baseline, and what could take its place, from the least stale to the most.
COMPARED = (BASELINE, "eager:quorum=0.75", "eager-majority", "eager-solo")
STAY = "stay with what waits for all"

WORTH_IT = 1.05  #: a gain below this is not worth any staleness
CLOSE = 0.95  #: of two strategies, the less stale one is taken if it is this close to the faster
APPLIED = 0.98  #: a strategy that drops more than the rest of this loses data
SLOWER = 1.2  #: a rank that computes so much longer than the median is named
FAIR = 0.5  #: a rank that has less than this of its fair share is hardly heard
MOST_STEPS = 200_000  #: simulated at most, over all ranks: a few seconds
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

    @property
    def waiting_share(self) -> float:
        """Share of a step that is waiting for others."""
        return self.waiting_s / self.step_s if self.step_s else 0.0


@dataclass(frozen=True)
class Advice:
    """One recommendation, and what it rests on."""

    recommended: str  #: a strategy's name, or STAY
    reasons: tuple[str, ...]  #: in words, the first one decides
    present: Present
    standing: Standing  #: of the strategies, the baseline first, when the trace is replayed
    skipped: tuple[str, ...]  #: what of the trace was not used, in words

    @property
    def possible(self) -> float:
        """The speed-up over waiting for everybody if nobody ever waited for another rank."""
        return _possible(self.standing)


def advise(trace: Trace, simulate: Callable[[str, Scenario], Timing] = simulate_timing) -> Advice:
    """What to do about the imbalance that a trace shows. Blocks for a few seconds; `simulate` runs one strategy."""
    scenario = replayed(trace)
    standing = Standing(scenario, [simulate(name, scenario) for name in COMPARED])
    present = present_of(trace)
    chosen, reasons = _recommend(present, standing, _as_far_as(trace))
    notes = _notes(trace, present, standing, chosen)
    return Advice(chosen.strategy if chosen else STAY, (*reasons, *notes), present, standing, trace.skipped)


def present_of(trace: Trace) -> Present:
    """What the trace shows of the run itself."""
    computing = compute_s(trace)
    slowest = max(computing, key=lambda rank: computing[rank])
    return Present(
        step_s=fmean(fmean((step.end_ns - step.begin_ns) / 1e9 for step in steady(r)) for r in trace.ranks.values()),
        compute_s=fmean(computing.values()),
        waiting_s=fmean(waiting_s(trace).values()),
        communication_s=communication_s(trace),
        slowest=slowest,
        slowest_over_median=computing[slowest] / (median_low(computing.values()) or 1.0),
    )


def replayed(trace: Trace) -> Scenario:
    """The recorded ranks as a scenario. Raises `TraceInvalid` where there is nothing to replay."""
    if trace.world < 2:
        raise TraceInvalid("this trace is of a single rank, which waits for nobody: record a run of two or more")
    if not any(compute_s(trace).values()):
        raise TraceInvalid("no rank of this trace ever computed: it was not recorded around a training loop")
    steps = max(len(rank.steps) for rank in trace.ranks.values())
    return Scenario(
        ranks=trace.world,
        steps=max(2, min(steps, MOST_STEPS // trace.world)),
        imbalance=Replay.of(trace),
        payload_mb=trace.payload_bytes / 1e6,
        network=f"fixed:round_ms={communication_s(trace) * 1e3:.6f}",
        apply_ms=fmean(apply_s(trace).values()) * 1e3,
    )


def _possible(standing: Standing) -> float:
    """Each rank at its own pace, communicating and applying as now. A late rank may not even wait for the former."""
    scenario = standing.scenario
    added_s = full_round_s(scenario) + scenario.apply_ms / 1e3
    own_pace = sum(1 / (compute_s + added_s) for compute_s in standing.compute_s)
    return max(own_pace / standing.runs[0].throughput, *map(standing.speedup, standing.runs))


def _as_far_as(trace: Trace) -> str:
    """What a verdict begins with when it rests on some ranks only."""
    recorded = len(trace.ranks)
    return "" if recorded == trace.world else f"as far as {recorded} of {trace.world} ranks can show, "


def _recommend(present: Present, standing: Standing, as_far_as: str) -> tuple[Timing | None, list[str]]:
    """The least stale strategy that is about as fast as the fastest, if any is worth it."""
    waiting = f"waiting for others costs {present.waiting_share:.0%} of a step now"
    possible = _possible(standing)
    if possible < WORTH_IT:
        return None, [
            f"{as_far_as}your ranks are balanced: stay with DDP. {waiting.capitalize()}, and even if nobody ever "
            f"waited you would gain {max(0.0, possible - 1):.0%}"
        ]
    sound = [run for run in standing.runs[1:] if run.applied_share >= APPLIED]
    fastest = max(sound, key=standing.speedup, default=None)
    if fastest is None or standing.speedup(fastest) < WORTH_IT:
        best = max(map(standing.speedup, standing.runs[1:]))
        return None, [
            f"{as_far_as}stay with DDP: {waiting}, but no strategy gains more than {max(0.0, best - 1):.0%} on it here"
            + (" without dropping contributions" if fastest is None else "")
        ]
    chosen = next(run for run in sound if standing.speedup(run) >= CLOSE * standing.speedup(fastest))
    reasons = [
        f"{as_far_as}{waiting}. {_in_words(standing, chosen)}, of the {possible:.2f}x that is possible if nobody "
        "ever waited"
    ]
    if chosen is not fastest:
        reasons.append(f"{_in_words(standing, fastest)}: hardly faster, and staler")
    return chosen, reasons


def _in_words(standing: Standing, run: Timing) -> str:
    return (
        f"{run.strategy} would be {standing.speedup(run):.2f}x as fast as waiting for all, with "
        f"{run.late_share:.0%} of the contributions late (99 % by at most {run.staleness_of(0.99)} rounds)"
    )


def _notes(trace: Trace, present: Present, standing: Standing, chosen: Timing | None) -> Iterator[str]:
    """What else one should know before one believes it."""
    if present.slowest_over_median >= SLOWER:
        yield (
            f"rank {present.slowest} (host {trace.ranks[present.slowest].host}) computes "
            f"{present.slowest_over_median:.2f}x as long as the median rank, step after step: see to that machine first"
        )
    if chosen is not None and standing.fair_part(chosen) < FAIR:
        yield (
            f"the slowest rank would have {standing.fair_part(chosen):.0%} of its fair share of the contributions: "
            "where ranks hold different data, its data count less"
        )
    if chosen is not None and trace.strategy == chosen.strategy:
        yield f"{chosen.strategy} is what this run was recorded with: keep it"
    if chosen is None and trace.strategy == "ddp":
        yield (
            "DDP may hide it: with buffers (BatchNorm) it also waits in forward, and when gradients are accumulated in "
            "every backward, which looks like computing; to be sure, record once more with "
            "DistributedDataParallel(..., forward_sync_buffers=False), and accumulate under no_sync()"
        )
    if present.communication_s > present.compute_s / 4:
        share = present.communication_s / present.step_s
        yield f"communication itself costs {share:.0%} of a step; no strategy here lessens that"
    missing = trace.world - len(trace.ranks)
    if missing:
        yield (
            f"{missing} of {trace.world} ranks left no trace; the others stand for them, so that what only they do is "
            "not seen"
        )
    shortest = min(len(rank.steps) for rank in trace.ranks.values())
    if shortest < SHORT:
        yield f"a rank has {shortest} steps only: record {SHORT} or more before you decide"
