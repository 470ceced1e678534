"""What a run says in a few numbers. Pure, and the one home of each figure: of lateness, of shares, of time.

Steps are compared across ranks by their number, which each rank counts for itself. Where every rank waits for every
other, steps of one number are the same mini-batch step; elsewhere they are only as good as that comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import correlation, fmean, median, median_low
from typing import NamedTuple

from outpace.observe.schema import Elsewhere, RankTrace, Step, Tally, Trace, TracedRound
from outpace.protocol import members
from outpace.protocol.ledger import Ledger

AnyTally = Tally | members.Tally  #: as it was recorded, or as the ledger has it

WARM_UP_STEPS = 2  #: the first uses memory and kernels for the first time; at the second, DDP's ranks meet in `forward`
SHORT = 4  #: of no more steps than this, all are taken
SHOWN = 3  #: places where others' collectives are waited for
UNEVEN = 1.1  #: as many more steps of one rank than of another are no accident


# -- contributions ----------------------------------------------------------------------------------------------------


def late_share(staleness: Mapping[int, int]) -> float:
    """Share of contributions that were late, of counts by the rounds they were late."""
    total = sum(staleness.values())
    return (total - staleness.get(0, 0)) / total if total else 0.0


def staleness_of(tallies: Iterable[AnyTally]) -> dict[int, int]:
    """Rounds late -> how many of the applied contributions, of all ranks together."""
    counts: Counter[int] = Counter()
    for tally in tallies:
        counts.update(tally.staleness)
    return dict(sorted(counts.items()))


def applied_shares(tallies: Mapping[int, AnyTally]) -> dict[int, float]:
    applied = {rank: tally.on_time + tally.carried for rank, tally in tallies.items()}
    total = sum(applied.values())
    return {rank: count / total if total else 0.0 for rank, count in applied.items()}


def staleness_in(rounds: Iterable[TracedRound]) -> dict[int, int]:
    counts = Counter(max(0, taken.number - given.version) for taken in rounds for given in taken.contributions)
    return dict(sorted(counts.items()))


class Carried(NamedTuple):
    """A late contribution: the step that computed it, and the round that included it."""

    rank: int
    step: Step
    round: TracedRound


def carried(trace: Trace, since_ns: int = 0) -> Iterator[Carried]:
    """Late contributions whose step was recorded, in the order of their rounds; both after `since_ns`."""
    ready = ((rank, step) for rank, row in trace.ranks.items() for step in row.steps if step.ready_ns >= since_ns)
    steps = {(rank, step.number, step.version): step for rank, step in ready}
    for taken in trace.rounds:
        if taken.at_ns >= since_ns:
            late = (given for given in taken.contributions if given.version < taken.number)
            yield from (Carried(given.rank, steps[given], taken) for given in late if given in steps)


# -- time -------------------------------------------------------------------------------------------------------------


def spans(step: Step) -> Iterator[tuple[str, int, int]]:
    """A step's parts, drawn one after the other, although waiting may come in several pieces."""
    waited = min(step.end_ns, step.ready_ns + round(step.waited_s * 1e9))
    yield "computing", step.begin_ns, step.ready_ns
    yield "waiting", step.ready_ns, waited
    yield "applying", waited, min(step.end_ns, waited + round(step.apply_s * 1e9))


def steady(rank: RankTrace) -> tuple[Step, ...]:
    """A rank's steps without those that warm up. All figures below are of these."""
    return rank.steps[WARM_UP_STEPS:] if len(rank.steps) > SHORT else rank.steps


def aligned(trace: Trace) -> list[tuple[Step, ...]]:
    """The steps that every rank has recorded, in order of their number; of a repeated one, the last."""
    by_number = [{step.number: step for step in steady(rank)} for rank in trace.ranks.values()]
    common = set.intersection(*(set(steps) for steps in by_number))
    return [tuple(steps[number] for steps in by_number) for number in sorted(common)]


def communication_s(trace: Trace) -> float:
    """What communication itself costs: the last rank to be ready waits for nobody, so the shortest wait is all that.

    The median over steps; 0 if no step was recorded by all ranks. Where ranks left no trace, one of them may have been
    the last, so only the shortest waits, of one step in twenty, are taken for communication.
    """
    shortest = sorted(min(step.waited_s for step in steps) for steps in aligned(trace))
    if not shortest:
        return 0.0
    return median(shortest) if len(trace.ranks) == trace.world else shortest[len(shortest) // 20]


def waiting_s(trace: Trace) -> dict[int, float]:
    """For each rank, its mean wait for others in a step: without the communication."""
    cost = communication_s(trace)
    return {r.rank: max(0.0, fmean(step.waited_s for step in steady(r)) - cost) for r in trace.ranks.values()}


def compute_s(trace: Trace) -> dict[int, float]:
    """For each rank, its mean time computing in a step."""
    return {r.rank: fmean(step.compute_s for step in steady(r)) for r in trace.ranks.values()}


def apply_s(trace: Trace) -> dict[int, float]:
    return {r.rank: fmean(step.apply_s for step in steady(r)) for r in trace.ranks.values()}


def late_steps_share(trace: Trace) -> dict[int, float]:
    return {r.rank: late_share(Counter(step.late or 0 for step in steady(r))) for r in trace.ranks.values()}


def slowest_rank(trace: Trace) -> int:
    computing = compute_s(trace)
    return max(computing, key=lambda rank: computing[rank])


def slow_share(trace: Trace, rank: int, factor: float) -> float | None:
    """In what share of the steps this rank computes so many times as long as the median rank of that step.

    None if no step was recorded by all ranks.
    """
    index = list(trace.ranks).index(rank)
    computing = [[step.compute_s for step in steps] for steps in aligned(trace)]
    return fmean(times[index] >= factor * median_low(times) for times in computing) if computing else None


def slowest_over_mean(trace: Trace) -> float:
    """How many times longer than the mean the slowest rank computes, averaged over steps: 1 is balanced."""
    computing = ([step.compute_s for step in steps] for steps in aligned(trace))
    ratios = [max(seconds) / fmean(seconds) if any(seconds) else 1.0 for seconds in computing]
    return fmean(ratios) if ratios else 1.0


def explained_by_samples(trace: Trace) -> float | None:
    """How closely a step's computing follows its number of samples or tokens, within each rank: the correlation.

    None if they were not recorded, or do not differ.
    """
    pairs = []
    for rank in trace.ranks.values():
        steps = [step for step in steady(rank) if step.samples is not None]
        if len(steps) > SHORT:
            mean_samples, mean_s = fmean(step.samples or 0.0 for step in steps), fmean(s.compute_s for s in steps)
            pairs += [((step.samples or 0.0) - mean_samples, step.compute_s - mean_s) for step in steps]
    samples, seconds = [sample for sample, _ in pairs], [second for _, second in pairs]
    if not any(samples) or not any(seconds):
        return None
    return correlation(samples, seconds)


def data_is_shared(trace: Trace) -> bool:
    """Whether ranks took their work from one pool: then the slower ones have made fewer steps."""
    counts = {rank.rank: len(rank.steps) for rank in trace.ranks.values()}
    most, least = max(counts.values()), min(counts.values())
    if most - least <= 2 or most < UNEVEN * least:
        return False
    computing = compute_s(trace)
    ranks = sorted(counts)
    if len({computing[rank] for rank in ranks}) < 2:
        return False
    return correlation([float(counts[rank]) for rank in ranks], [computing[rank] for rank in ranks]) < 0


# -- `optimizer.stats`, read off a rank's ledger -----------------------------------------------------------------------


@dataclass(frozen=True)
class RankStats:
    """How one rank's contributions fared."""

    rank: int
    state: str  #: active, syncing, finished or dead
    on_time: int
    carried: int
    dropped: int
    share: float  #: of all contributions that were applied
    incarnation: int = 1  #: 2 and more for a rank that was started again


@dataclass(frozen=True)
class Stats:
    """What this rank knows of the run so far."""

    rank: int
    version: int  #: rounds this replica has applied
    round: int  #: the open round, or the iteration nobody has published yet
    steps: int  #: steps of this rank
    waited_s: float  #: seconds this rank waited for others or reduced with them
    last: str  #: how this rank's last contribution fared, in words
    grace_s: float  #: grace the next round would get
    ranks: tuple[RankStats, ...]
    staleness: dict[int, int]  #: rounds late -> how many contributions
    quorum: str = ""  #: where it follows the arrivals: how many of whom, and why
    elsewhere: tuple[Elsewhere, ...] = ()  #: waits in collectives that are not outpace's; known only while recording

    @property
    def late_share(self) -> float:
        """Share of the applied contributions that were late."""
        return late_share(self.staleness)

    def __str__(self) -> str:
        rows = [
            f"  rank {r.rank}: {r.state}, {r.on_time} on time, {r.carried} carried, {r.dropped} dropped, "
            f"{r.share:.0%} of all{f', incarnation {r.incarnation}' if r.incarnation > 1 else ''}"
            for r in self.ranks
        ]
        head = f"[rank {self.rank} - round {self.round}] {self.steps} steps, version {self.version}"
        waited = f"waited {self.waited_s:.1f} s, {self.late_share:.0%} of all contributions late"
        quorum = [f"  quorum {self.quorum}"] if self.quorum else []
        others = [f"  beside that it waited {each}" for each in self.elsewhere[:SHOWN]]
        return "\n".join([f"{head}, {waited}", *quorum, *others, *rows])


def stats_of(
    ledger: Ledger,
    rank: int,
    version: int,
    steps: int,
    waited_s: float,
    last: str,
    elsewhere: tuple[Elsewhere, ...] = (),
) -> Stats:
    tallies = ledger.members.tallies
    shares = applied_shares(tallies)
    ranks = []
    for number, member in sorted(ledger.members.by_rank.items()):
        tally = tallies[number]
        state = member.state if member.alive or member.state == "finished" else "dead"
        counts = tally.on_time, tally.carried, tally.dropped
        ranks.append(RankStats(number, state, *counts, shares[number], member.incarnation))
    grace = ledger.rules.grace
    grace_s = ledger.pace.grace_ns() / 1e9 if grace == "auto" else float(grace)
    open_round, staleness = max(ledger.round, ledger.published.furthest + 1), staleness_of(tallies.values())
    changes = ledger.choice.changes
    quorum = str(changes[-1]) if changes else ""
    known = rank, version, open_round, steps, waited_s, last, grace_s
    return Stats(*known, tuple(ranks), staleness, quorum, elsewhere)
