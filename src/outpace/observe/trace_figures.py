"""What a trace says in a few numbers. Pure: a trace in, figures out.

Steps are compared across ranks by their number, which each rank counts for itself. Where every rank waits for every
other, they are the same mini-batch step; elsewhere they are only as good as that comparison.
"""

from __future__ import annotations

from statistics import fmean, median, median_low

from outpace.observe.trace import RankTrace, Step, Trace

WARM_UP_STEPS = 2  #: the first uses memory and kernels for the first time; at the second, DDP's ranks meet in `forward`
SHORT = 4  #: of no more steps than this, all are taken


def steady(rank: RankTrace) -> tuple[Step, ...]:
    """A rank's steps without those that warm up. All figures are of these."""
    return rank.steps[WARM_UP_STEPS:] if len(rank.steps) > SHORT else rank.steps


def aligned(trace: Trace) -> list[tuple[Step, ...]]:
    """The steps that every rank has recorded, in order of their number; a repeated one counts as it was last."""
    by_number = [{step.number: step for step in steady(rank)} for rank in trace.ranks.values()]
    common = set.intersection(*(set(steps) for steps in by_number))
    return [tuple(steps[number] for steps in by_number) for number in sorted(common)]


def communication_s(trace: Trace) -> float:
    """What communication itself costs: the last rank to be ready waits for nobody, so the smallest wait is all that.

    The median over steps; 0 if no step was recorded by all ranks. Where ranks left no trace, one of them may have been
    the last, so that only the shortest waits, of one step in twenty, are taken for communication.
    """
    smallest = sorted(min(step.waited_s for step in steps) for steps in aligned(trace))
    if not smallest:
        return 0.0
    return median(smallest) if len(trace.ranks) == trace.world else smallest[len(smallest) // 20]


def waiting_s(trace: Trace) -> dict[int, float]:
    """For each rank, how long it waited for others in a step, on average: its wait without the communication."""
    cost = communication_s(trace)
    return {r.rank: max(0.0, fmean(step.waited_s for step in steady(r)) - cost) for r in trace.ranks.values()}


def compute_s(trace: Trace) -> dict[int, float]:
    """For each rank, how long it computed in a step, on average."""
    return {r.rank: fmean(step.compute_s for step in steady(r)) for r in trace.ranks.values()}


def apply_s(trace: Trace) -> dict[int, float]:
    """For each rank, how long the optimizer worked in a step, on average."""
    return {r.rank: fmean(step.apply_s for step in steady(r)) for r in trace.ranks.values()}


def late_share(trace: Trace) -> dict[int, float]:
    """For each rank, the share of its steps that were late."""
    return {r.rank: fmean(step.late > 0 for step in steady(r)) for r in trace.ranks.values()}


def slow_share(trace: Trace, rank: int, factor: float) -> float | None:
    """In what share of the steps this rank computes so many times as long as the median rank of that step.

    None if no step was recorded by all ranks.
    """
    index = list(trace.ranks).index(rank)
    computing = [[step.compute_s for step in steps] for steps in aligned(trace)]
    return fmean(times[index] >= factor * median_low(times) for times in computing) if computing else None


def slowest_over_mean(trace: Trace) -> float:
    """How many times longer than the mean the slowest rank computes, averaged over steps: 1 is balanced."""
    ratios = [_slowest_over_mean([step.compute_s for step in steps]) for steps in aligned(trace)]
    return fmean(ratios) if ratios else 1.0


def _slowest_over_mean(seconds: list[float]) -> float:
    mean = fmean(seconds)
    return max(seconds) / mean if mean else 1.0
