"""Simulated waiting against what can be computed by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.imbalance import Imbalance
from outpace.protocol.events import Arrive, Event
from outpace.simulation import DATA, SHARED, SPLIT, Scenario, Timing, ideal_throughput, simulate_timing

MS = 1_000_000


class Table(Imbalance):
    """Computing times in milliseconds, one for each rank."""

    def __init__(self, *milliseconds: int) -> None:
        self.milliseconds = milliseconds

    def compute_s(self, rank: int, world: int, step: int, base_s: float) -> float:
        return self.milliseconds[rank] / 1e3


def one_step(strategy: str, milliseconds: list[int], **options: object) -> Timing:
    scenario = Scenario(ranks=len(milliseconds), steps=1, imbalance=Table(*milliseconds), network="zero", **options)
    return simulate_timing(strategy, scenario)


def waited_ms(run: Timing) -> list[Fraction]:
    return [Fraction(round(waited * 1e9), MS) for waited in run.waited_s]


def mean(values: list[Fraction]) -> Fraction:
    return Fraction(sum(values), len(values))


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 32])
def test_mean_waits_on_a_linear_skew(ranks: int) -> None:
    skew = list(range(ranks))
    half = -(-ranks // 2)
    assert mean(waited_ms(one_step("allreduce", skew))) == Fraction(ranks - 1, 2)
    assert mean(waited_ms(one_step("eager-majority:grace=0", skew))) == Fraction(half * (half - 1), 2 * ranks)
    assert mean(waited_ms(one_step("eager-solo:grace=0", skew))) == 0


def test_the_figures_of_32_ranks() -> None:
    skew = list(range(32))
    assert mean(waited_ms(one_step("allreduce", skew))) == Fraction("15.5")
    assert mean(waited_ms(one_step("eager-majority:grace=0", skew))) == Fraction("3.75")


def test_the_papers_majority_waits_for_its_initiator() -> None:
    ranks, draws = 32, 1000
    possible = {Fraction(i * (i + 1), 2 * ranks) for i in range(ranks)}  # initiator i: those before it wait i - r
    waits = [
        mean(waited_ms(one_step(f"eager:quorum=majority-random,grace=0,seed={seed}", list(range(ranks)))))
        for seed in range(draws)
    ]
    assert set(waits) == possible
    expected = Fraction(ranks**2 - 1, 6 * ranks)
    assert round(float(expected), 2) == 5.33
    spread = math.sqrt(mean([(wait - expected) ** 2 for wait in possible]))
    assert abs(float(mean(waits) - expected)) < 4 * spread / math.sqrt(draws)


@pytest.mark.parametrize(
    ("data", "strategy", "rate", "ideal"),
    [
        (SHARED, "allreduce", 4.0, 7.5),
        (SHARED, "eager-solo:grace=0", 7.5, 7.5),
        (SPLIT, "allreduce", 4.0, 4.0),
        (SPLIT, "eager-solo:grace=0", 4.0, 4.0),  # the slow rank makes 75 steps of 2 s, whatever the others do
    ],
)
def test_rates_with_one_rank_of_eight_twice_as_slow(data: str, strategy: str, rate: float, ideal: float) -> None:
    scenario = Scenario(ranks=8, steps=75, compute_ms=1000, imbalance="slow:k=1,factor=2", network="zero", data=data)
    run = simulate_timing(strategy, scenario)
    assert run.throughput == pytest.approx(rate, rel=1e-12)
    assert ideal_throughput(scenario) == pytest.approx(ideal, rel=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=2, max_size=6), st.integers(1, 12))
def test_of_split_data_every_rank_makes_its_own_steps_and_the_slowest_ends_the_run(
    milliseconds: list[int], steps: int
) -> None:
    scenario = Scenario(ranks=len(milliseconds), steps=steps, imbalance=Table(*milliseconds), network="zero")
    for strategy in ("allreduce", "eager-solo:grace=0,repair=none"):
        run = simulate_timing(strategy, scenario)
        assert [t.on_time + t.carried + t.dropped for t in run.tallies] == [steps] * len(milliseconds)
        assert run.seconds == pytest.approx(steps * max(milliseconds) / 1e3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=9, unique=True), st.data())
def test_a_round_lasts_as_long_as_its_quorums_slowest_and_only_those_on_time_wait(
    milliseconds: list[int], data: st.DataObject
) -> None:
    quorum = data.draw(st.integers(1, len(milliseconds)))
    run = one_step(f"eager:quorum={quorum},grace=0,max_staleness=20,repair=none", milliseconds)
    sealed = sorted(milliseconds)[quorum - 1]
    assert waited_ms(run) == [max(0, sealed - mine) for mine in milliseconds]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=2, max_size=6), st.integers(1, 12), st.sampled_from(DATA))
def test_work_is_conserved(milliseconds: list[int], steps: int, data: str) -> None:
    scenario = Scenario(ranks=len(milliseconds), steps=steps, imbalance=Table(*milliseconds), network="host", data=data)
    for strategy in ("allreduce", "eager-majority", "eager-solo", "eager:quorum=adaptive,late=count", "auto"):
        run = simulate_timing(strategy, scenario)
        made = sum(t.on_time + t.carried + t.dropped for t in run.tallies)
        assert made == len(milliseconds) * steps
        assert run.throughput <= ideal_throughput(scenario) * (1 + 1e-9)


@pytest.mark.parametrize("strategy", ["allreduce", "eager-majority", "eager-solo", "auto"])
def test_a_rank_that_is_alone_never_waits(strategy: str) -> None:
    run = simulate_timing(strategy, Scenario(ranks=1, steps=20, imbalance="exponential", network="zero"))
    assert run.waited_s == (0.0,)


def test_grace_lets_ranks_that_only_jitter_be_on_time() -> None:
    scenario = Scenario(ranks=8, steps=200, imbalance="normal:sd_ms=2", network="zero")
    without = simulate_timing("eager-majority:grace=0", scenario)
    learned = simulate_timing("eager-majority", scenario)
    assert without.staleness.total() - without.staleness[0] > 8 * (learned.staleness.total() - learned.staleness[0])
    assert learned.throughput > 0.9 * ideal_throughput(scenario)


def test_rounds_take_what_the_network_takes() -> None:
    scenario = Scenario(ranks=4, steps=10, network="fixed:round_ms=7")
    run = simulate_timing("allreduce", scenario)
    assert run.seconds == pytest.approx(10 * 0.107)
    assert run.waited_s == pytest.approx([10 * 0.007] * 4)


def test_a_log_is_the_same_each_time_and_another_with_another_seed() -> None:
    def digest(seed: int) -> str:
        scenario = Scenario(ranks=6, steps=30, imbalance="gamma:mean_ms=40,sd_ms=40", seed=seed)
        return simulate_timing("eager-majority", scenario).digest

    digests = [digest(seed) for seed in range(50)]
    assert digests == [digest(seed) for seed in range(50)]
    assert len(set(digests)) == 50


def test_a_log_is_the_same_on_every_machine() -> None:
    """Pinned: whoever changes what is simulated changes this on purpose."""
    scenario = Scenario(ranks=5, steps=20, imbalance="random:k=2,delay_ms=30", data=SHARED, seed=3)
    assert simulate_timing("eager-majority:repair=none", scenario).digest == "81e1f6f24a90d046f6f2dc3380d79b96"


def test_those_who_watch_see_every_event_in_the_order_of_time() -> None:
    seen: list[Event] = []
    scenario = Scenario(ranks=3, steps=5, imbalance="random:k=1,delay_ms=50")
    simulate_timing("eager-solo", scenario, watch=lambda event, reason: seen.append(event))
    assert [e.time_ns for e in seen] == sorted(e.time_ns for e in seen)
    assert sum(isinstance(e, Arrive) for e in seen) == 15
