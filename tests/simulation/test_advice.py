"""What is advised for ranks of a known kind. Traces are those of DDP: who is last waits for nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from outpace.errors import TraceInvalid
from outpace.imbalance import imbalance
from outpace.observe.schema import RankTrace, Step, Trace
from outpace.simulation import BALANCED, BASELINE, SHARED, SPLIT, Scenario, Timing, simulate_timing
from outpace.simulation.advice import STAY, Advice, advise, possible, present_of

NS = 10**9
COMMUNICATION_S = 0.004


def ddp_trace(model: str, ranks: int = 8, steps: int = 120, kept: range | None = None) -> Trace:
    """Of ranks that compute as the model says."""
    times = imbalance(model)
    compute_ms = [[times.compute_s(r, ranks, n, 0.1) * 1e3 for n in range(1, steps + 1)] for r in range(ranks)]
    trace = trace_of(compute_ms)
    return replace(trace, ranks={rank: trace.ranks[rank] for rank in kept or range(ranks)})


def trace_of(compute_ms: Sequence[Sequence[float]]) -> Trace:
    """A run in which each step lasts as long as its slowest rank, and communication on top."""
    now = 0
    recorded: list[list[Step]] = [[] for _ in compute_ms]
    for number, computing in enumerate(zip(*compute_ms, strict=True), 1):
        ready = [now + round(ms / 1e3 * NS) for ms in computing]
        end = max(ready) + round(COMMUNICATION_S * NS)
        for mine, mine_ready in zip(recorded, ready, strict=True):
            mine.append(Step(number, now, mine_ready, end, (end - mine_ready) / NS, 0.0))
        now = end
    ranks = {rank: RankTrace(rank, f"host{rank // 4}", tuple(steps)) for rank, steps in enumerate(recorded)}
    return Trace(len(ranks), "ddp", 4_000_000, ranks)


def every_third_step(fast_ms: float) -> list[list[float]]:
    """Two ranks: every third step of one is 200 ms longer."""
    return [[fast_ms] * 120, [fast_ms + 200 * (step % 3 == 0) for step in range(120)]]


def words(advice: Advice) -> str:
    return " ".join(advice.reasons)


def run_of(advice: Advice, strategy: str) -> Timing:
    return next(run for run in advice.standing.runs if run.strategy == strategy)


@pytest.mark.parametrize("model", ["none", "normal:sd_ms=0.5", "random:k=0"])
def test_balanced_ranks_stay_with_ddp(model: str) -> None:
    advice = advise(ddp_trace(model))
    assert advice.recommended == STAY
    assert advice.reasons[0].startswith("your ranks are balanced: stay with DDP")
    assert "with buffers (BatchNorm) it also waits in forward" in words(advice)


@pytest.mark.parametrize(
    ("model", "data"),
    [
        ("random:k=1,delay_ms=200", SPLIT),
        ("lognormal:mean_ms=40,sd_ms=80", SPLIT),
        ("lognormal:mean_ms=40,sd_ms=80", SHARED),
        ("slow:k=1,factor=3", SHARED),
    ],
)
def test_imbalanced_ranks_get_a_strategy_that_gains(model: str, data: str) -> None:
    advice = advise(ddp_trace(model), data)
    speedup = advice.standing.speedup(run_of(advice, advice.recommended))
    assert speedup > 1.3
    assert f"{speedup:.2f}x as fast as waiting for all" in advice.reasons[0]
    assert speedup <= possible(advice.standing) * 1.01


def test_of_two_that_are_about_as_fast_the_less_stale_one_is_taken() -> None:
    advice = advise(ddp_trace("slow:k=1,factor=3"), SHARED)
    assert advice.recommended == "eager:quorum=0.75"
    assert run_of(advice, advice.recommended).late_share <= min(run.late_share for run in advice.standing.runs[1:])


def test_what_waiting_costs_now_is_what_the_trace_shows() -> None:
    present = present_of(ddp_trace("slow:k=1,factor=2"))
    assert present.step_s == pytest.approx(0.204)
    assert present.communication_s == pytest.approx(COMMUNICATION_S)
    assert present.waiting_s == pytest.approx(0.1 * 7 / 8)
    assert present.waiting_share == pytest.approx(0.0875 / 0.204)
    assert (present.slowest, present.slowest_over_median) == (0, pytest.approx(2.0))


def test_the_baseline_is_as_fast_as_the_recorded_run() -> None:
    trace = ddp_trace("lognormal:mean_ms=40,sd_ms=80", steps=400)
    base = run_of(advise(trace), BASELINE)
    assert trace.world / base.throughput == pytest.approx(present_of(trace).step_s, rel=0.02)


def test_where_one_rank_is_always_slow_nothing_is_gained_while_the_data_are_split() -> None:
    """Every rank has its own part of an epoch, which ends when the slowest has done its part."""
    advice = advise(ddp_trace("slow:k=1,factor=2.5", ranks=4))
    assert advice.recommended == STAY
    assert all(advice.standing.speedup(run) == pytest.approx(1, abs=0.02) for run in advice.standing.runs)
    assert possible(advice.standing) == pytest.approx(1, abs=0.02)
    assert "rank 0 has as many steps to make as the others and computes 2.50x as long" in advice.reasons[0]
    assert "balanced" not in words(advice)
    assert "DDP may hide it" not in words(advice), "it is to be seen"


def test_what_one_pool_of_data_would_gain_is_said_as_what_it_is() -> None:
    trace = ddp_trace("slow:k=1,factor=2.5", ranks=4)
    advice, shared = advise(trace), advise(trace, SHARED)
    assert [run.digest for run in advice.shared.runs] == [run.digest for run in shared.standing.runs]
    gain = shared.standing.speedup(run_of(shared, shared.recommended))
    assert gain > 2
    assert f"one pool, and whoever is free the next, {shared.recommended} would be {gain:.2f}x" in advice.reasons[1]
    assert "one pool" not in words(shared)


def test_where_the_pool_would_gain_no_more_nothing_is_said_of_it() -> None:
    assert "one pool" not in words(advise(ddp_trace("shifting-skew")))


def test_what_is_said_to_be_the_most_that_is_gained_is_in_the_table() -> None:
    """Strategies that drop much may be faster. Who is told to stay is told of them, not that there are none."""
    advice = advise(trace_of(every_third_step(fast_ms=10)), SHARED)
    assert advice.recommended == STAY
    lossy = max(advice.standing.runs, key=advice.standing.speedup)
    assert advice.standing.speedup(lossy) > 3
    assert lossy.applied_share < 0.98
    lossless = max(advice.standing.speedup(run) for run in advice.standing.runs if run.applied_share >= 0.98)
    assert f"no strategy gains more than {lossless - 1:.0%} on it here without dropping" in advice.reasons[0]
    assert f"{lossy.strategy}, {advice.standing.speedup(lossy):.2f}x as fast, would drop" in advice.reasons[0]


@pytest.mark.parametrize("data", [SPLIT, SHARED])
def test_where_every_strategy_drops_too_much_ddp_stays(data: str) -> None:
    def dropping(name: str, scenario: Scenario) -> Timing:
        run = simulate_timing(BASELINE if name == BASELINE else "eager-solo:late=drop,grace=0", scenario)
        return replace(run, strategy=name)

    advice = advise(ddp_trace("lognormal:mean_ms=40,sd_ms=80"), data, dropping)
    assert advice.recommended == STAY
    assert "no strategy gains more than 0% on it here" in advice.reasons[0]


def with_lengths(trace: Trace) -> Trace:
    """Each step has as many tokens as it took milliseconds."""

    def with_tokens(rank: RankTrace) -> RankTrace:
        return replace(rank, steps=tuple(msgspec.structs.replace(s, samples=s.compute_s * 1e3) for s in rank.steps))

    return replace(trace, ranks={number: with_tokens(rank) for number, rank in trace.ranks.items()})


def test_what_to_do_first_about_balanced_ranks_lengths_and_a_slow_rank() -> None:
    balanced = advise(with_lengths(ddp_trace("normal:sd_ms=0.5")))
    assert (balanced.first, balanced.data) == (STAY, SPLIT)
    lengths = advise(with_lengths(ddp_trace("lognormal:mean_ms=40,sd_ms=80", steps=300)))
    assert lengths.first.startswith("balance the batches first")
    assert lengths.data == BALANCED
    now = present_of(ddp_trace("lognormal:mean_ms=40,sd_ms=80", steps=300))
    assert lengths.gain == pytest.approx(now.step_s / (now.compute_s + COMMUNICATION_S), rel=0.1)
    slow = advise(with_lengths(ddp_trace("slow:k=1,factor=2.5", ranks=4)))
    assert slow.first == "share the data: outpace.data.SharedSampler, with eager:quorum=0.75"
    assert slow.gain == pytest.approx((3 + 1 / 2.5) / 4 * 2.5, rel=0.1)


def test_where_lengths_are_not_known_nobody_is_told_to_balance_them() -> None:
    advice = advise(ddp_trace("lognormal:mean_ms=40,sd_ms=80"))
    assert "balance" not in advice.first


def test_one_pool_is_seen_from_the_numbers_of_steps() -> None:
    trace = trace_of([[20.0] * 120, [20.0] * 120, [60.0] * 120])
    assert advise(trace).standing.scenario.data == SPLIT
    fewer = replace(trace.ranks[2], steps=trace.ranks[2].steps[:40])
    shared = advise(replace(trace, ranks={**trace.ranks, 2: fewer}))
    assert shared.standing.scenario.data == SHARED


def test_a_rank_that_is_slow_at_every_step_is_told_from_one_that_is_slow_at_some() -> None:
    always = advise(ddp_trace("slow:k=1,factor=2"))
    assert always.present.slow_steps_share == 1
    assert "rank 0 (host host0) computes 2.00x as long as the median rank, step after step" in words(always)
    sometimes = advise(trace_of(every_third_step(fast_ms=100)))
    assert sometimes.present.slow_steps_share == pytest.approx(1 / 3, abs=0.01)
    assert "step after step" not in words(sometimes)
    assert "is the slower one in only 33% of the steps" in words(sometimes)
    assert "rank 0 (" not in words(advise(ddp_trace("random:k=1,delay_ms=200")))


def test_slow_is_measured_against_the_others_in_the_same_step() -> None:
    """Steps that are long for all do not make a slow rank seem quick in the others."""
    base = [20 if step % 2 else 200 for step in range(120)]
    present = present_of(trace_of([base, base, [2 * ms for ms in base]]))
    assert (present.slowest, present.slow_steps_share) == (2, 1)


def test_without_a_step_that_all_recorded_nobody_says_how_often_a_rank_is_slow() -> None:
    trace = trace_of([[20] * 60, [50] * 60])
    cut = {0: trace.ranks[0].steps[:30], 1: trace.ranks[1].steps[30:]}
    apart = replace(trace, ranks={rank: replace(trace.ranks[rank], steps=steps) for rank, steps in cut.items()})
    assert present_of(apart).slow_steps_share is None
    assert "it is unknown how often" in words(advise(apart))


def test_a_slow_rank_that_would_hardly_be_heard_is_a_warning() -> None:
    assert "of its fair share of the contributions" in words(advise(ddp_trace("slow:k=1,factor=4"), SHARED))


def test_missing_ranks_are_stood_in_for_and_said() -> None:
    advice = advise(ddp_trace("random:k=1,delay_ms=200", kept=range(3)))
    assert "5 of 8 ranks left no trace" in words(advice)
    assert len(run_of(advice, BASELINE).tallies) == 8


def test_one_ranks_trace_still_shows_what_varies_in_time() -> None:
    """Its copies must not be slow at the same steps: that would look balanced."""
    advice = advise(ddp_trace("lognormal:mean_ms=40,sd_ms=80", kept=range(1)))
    assert advice.recommended != STAY
    assert "7 of 8 ranks left no trace" in words(advice)


def test_who_has_the_right_strategy_is_told_to_keep_it() -> None:
    trace = ddp_trace("random:k=1,delay_ms=200")
    assert "keep it" not in words(advise(trace))
    assert "keep it" in words(advise(replace(trace, strategy=advise(trace).recommended)))


def test_the_parts_of_a_step_add_up_when_ranks_made_unequal_numbers_of_steps() -> None:
    trace = ddp_trace("slow:k=1,factor=3", ranks=2)
    cut = replace(trace.ranks[0], steps=trace.ranks[0].steps[:10])
    present = present_of(replace(trace, ranks={**trace.ranks, 0: cut}))
    assert present.compute_s + present.waiting_s + present.communication_s == pytest.approx(present.step_s)
    assert present.slowest_over_median == pytest.approx(3.0)


def test_a_short_trace_is_used_with_a_word() -> None:
    assert "a rank has only 5 steps" in words(advise(ddp_trace("random:k=1,delay_ms=200", steps=5)))


def test_a_single_rank_waits_for_nobody() -> None:
    with pytest.raises(TraceInvalid, match="single rank"):
        advise(ddp_trace("none", ranks=1))


def test_the_same_trace_gives_the_same_advice() -> None:
    trace = ddp_trace("gamma:mean_ms=50,sd_ms=50")
    assert advise(trace).reasons == advise(trace).reasons
