"""What is advised for ranks of a known kind. Traces are those of DDP: who is last waits for nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outpace.errors import TraceInvalid
from outpace.imbalance import imbalance
from outpace.observe.trace import RankTrace, Step, Trace
from outpace.simulation import BASELINE, Timing
from outpace.simulation.advice import STAY, Advice, advise, present_of

NS = 10**9
COMMUNICATION_S = 0.004


def ddp_trace(model: str, ranks: int = 8, steps: int = 120, kept: range | None = None) -> Trace:
    """A run in which each step lasts as long as its slowest rank, and communication on top."""
    times = imbalance(model)
    now = [0] * ranks
    recorded: list[list[Step]] = [[] for _ in range(ranks)]
    for number in range(1, steps + 1):
        ready = [now[r] + round(times.compute_s(r, ranks, number, 0.1) * NS) for r in range(ranks)]
        end = max(ready) + round(COMMUNICATION_S * NS)
        for rank in range(ranks):
            waited_s = (end - ready[rank]) / NS
            recorded[rank].append(Step(number, now[rank], ready[rank], end, waited_s, 0.0))
        now = [end] * ranks
    chosen = {rank: RankTrace(rank, f"host{rank // 4}", tuple(recorded[rank])) for rank in kept or range(ranks)}
    return Trace(ranks, "ddp", 4_000_000, chosen)


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


@pytest.mark.parametrize("model", ["random:k=1,delay_ms=200", "lognormal:mean_ms=40,sd_ms=80", "slow:k=1,factor=3"])
def test_imbalanced_ranks_get_a_strategy_that_gains(model: str) -> None:
    advice = advise(ddp_trace(model))
    speedup = advice.standing.speedup(run_of(advice, advice.recommended))
    assert speedup > 1.3
    assert f"{speedup:.2f}x as fast as waiting for all" in advice.reasons[0]
    assert speedup <= advice.possible * 1.01


def test_of_two_that_are_about_as_fast_the_less_stale_one_is_taken() -> None:
    advice = advise(ddp_trace("slow:k=1,factor=3"))
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


def test_a_rank_that_is_always_slow_is_named_with_its_host() -> None:
    assert "rank 0 (host host0) computes 2.00x as long" in words(advise(ddp_trace("slow:k=1,factor=2")))
    assert "computes" not in words(advise(ddp_trace("random:k=1,delay_ms=200")))


def test_a_slow_rank_that_would_hardly_be_heard_is_a_warning() -> None:
    assert "of its fair share of the contributions" in words(advise(ddp_trace("slow:k=1,factor=4")))


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
    trace = ddp_trace("slow:k=1,factor=3")
    assert "keep it" not in words(advise(trace))
    assert "keep it" in words(advise(replace(trace, strategy=advise(trace).recommended)))


def test_the_parts_of_a_step_add_up_when_ranks_made_unequal_numbers_of_steps() -> None:
    trace = ddp_trace("slow:k=1,factor=3", ranks=2)
    cut = replace(trace.ranks[0], steps=trace.ranks[0].steps[:10])
    present = present_of(replace(trace, ranks={**trace.ranks, 0: cut}))
    assert present.compute_s + present.waiting_s + present.communication_s == pytest.approx(present.step_s)
    assert present.slowest_over_median == pytest.approx(3.0)


def test_a_short_trace_is_used_with_a_word() -> None:
    assert "a rank has 5 steps only" in words(advise(ddp_trace("random:k=1,delay_ms=200", steps=5)))


def test_a_single_rank_waits_for_nobody() -> None:
    with pytest.raises(TraceInvalid, match="single rank"):
        advise(ddp_trace("none", ranks=1))


def test_the_same_trace_gives_the_same_advice() -> None:
    trace = ddp_trace("gamma:mean_ms=50,sd_ms=50")
    assert advise(trace).reasons == advise(trace).reasons
