"""What the models say of themselves: mean, standard deviation, tail and bounds, measured over many draws.

Means, deviations and shares may be off by five standard errors, so another seed would pass and another parameter not.
"""

import math
import statistics
from dataclasses import dataclass
from itertools import groupby, pairwise

import pytest

from outpace.imbalance import Bursts, Lengths, ShiftingSkew, imbalance

WORLD, STEPS, STRIDE = 8, 5_000, 50  # so far apart, even the steps of bursts are independent
COUNT = WORLD * STEPS
BASE_MS = 1000.0
SIGMAS, EXACT, NEARLY = 5, 1e-12, 1.005


@dataclass
class Claim:
    """Of the milliseconds that a rank computes, where it would take `BASE_MS` undisturbed."""

    model: str
    mean: float | None = None  #: not checked where the variance is infinite
    sd: float | None = None  #: not checked where the tail is too heavy to measure it
    over: tuple[float, float] = (0.0, 1.0)  #: a time, and the share of the steps that take longer
    low: float | None = None  #: a bound that no step passes and some step nearly reaches
    high: float | None = None


CLAIMS = [
    Claim("random", mean=1025, sd=200 * math.sqrt(7) / 8, over=(1100, 1 / 8), low=1000, high=1200),
    Claim("random:k=4,delay_ms=460", mean=1230, sd=230, over=(1459, 1 / 2), low=1000, high=1460),
    Claim("shifting-skew", mean=1225, sd=50 * math.sqrt(63 / 12), over=(1349, 2 / 8), low=1050, high=1400),
    Claim("normal", mean=1000, sd=20, over=(1040, 1 / 44)),
    Claim("normal:mean_ms=50", mean=1050, sd=20, over=(1110, 1 / 741)),
    Claim("lognormal", mean=1020, over=(1171, 0.01), low=1000),
    Claim("lognormal", over=(1008.9, 0.5)),
    Claim("lognormal:sd_ms=5", mean=1020, sd=5),
    Claim("gamma", mean=1020, sd=10, over=(1050.2, 0.01), low=1000),
    Claim("gamma:mean_ms=20,sd_ms=20", mean=1020, sd=20, over=(1092.1, 0.01), low=1000),
    Claim("gamma:mean_ms=10,sd_ms=14.14", mean=1010, sd=14.14, over=(1066.35, 0.01), low=1000),  # 10 ms * chi-square
    Claim("exponential", mean=1020, sd=20, over=(1092.1, 0.01), low=1000),
    Claim("pareto", over=(1100, 0.01), low=1010),
    Claim("pareto:alpha=6", mean=1012, sd=math.sqrt(6), over=(1020, 2**-6), low=1010),
    Claim("pauses", mean=1020, sd=2000 * math.sqrt(0.0099), over=(2000, 0.01), low=1000, high=3000),
    Claim("bursts", mean=1200, sd=600, over=(2000, 0.1), low=1000, high=3000),
    Claim("bursts:factor=2,burst_steps=10,calm_steps=30", mean=1250, sd=250 * math.sqrt(3), low=1000, high=2000),
    Claim("lengths", mean=1235, sd=706, over=(2691, 0.05), low=201, high=3410),
    Claim("lengths", over=(3392, 1 / 1192)),  # the longest of the 1,192 batches that were measured
    Claim("lengths:mean_ms=123.5", mean=123.5, sd=70.6, over=(269.1, 0.05), low=20.1, high=341),
    Claim("rollouts", mean=2291.5, over=(4000, 0.043), low=1700, high=43_500),
    Claim("rollouts", over=(10_000, 0.0045)),
    Claim("rollouts:scale=0.01", mean=22.915, over=(19.5, 0.5), low=17, high=435),
]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.model)
def test_a_model_is_what_it_claims(claim):
    model = imbalance(claim.model, seed=11)
    times = [
        model.compute_s(rank, WORLD, step * STRIDE, BASE_MS / 1000) * 1000
        for step in range(STEPS)
        for rank in range(WORLD)
    ]
    mean, sd = statistics.fmean(times), statistics.pstdev(times)
    if claim.mean is not None:
        assert abs(mean - claim.mean) < SIGMAS * sd / math.sqrt(COUNT)
    if claim.sd is not None:
        fourth = statistics.fmean((time - mean) ** 4 for time in times)
        assert abs(sd - claim.sd) <= SIGMAS * math.sqrt(fourth - sd**4) / (2 * sd * math.sqrt(COUNT))
    if claim.low is not None:
        assert claim.low * (1 - EXACT) <= min(times) <= claim.low * NEARLY
    if claim.high is not None:
        assert claim.high / NEARLY <= max(times) <= claim.high * (1 + EXACT)
    threshold, share = claim.over
    measured = sum(time > threshold for time in times) / COUNT
    assert abs(measured - share) <= SIGMAS * math.sqrt(share * (1 - share) / COUNT)


@pytest.mark.parametrize(
    ("text", "step", "expected"),
    [
        ("none", 7, [1000, 1000, 1000, 1000]),
        ("skew", 7, [1000, 1001, 1002, 1003]),
        ("skew:step_ms=10,first_ms=5", 7, [1005, 1015, 1025, 1035]),
        ("shifting-skew:min_ms=0,max_ms=30", 0, [1000, 1010, 1020, 1030]),
        ("shifting-skew:min_ms=0,max_ms=30", 5, [1010, 1020, 1030, 1000]),
        ("slow", 7, [2000, 1000, 1000, 1000]),
        ("slow:k=3,factor=1.5", 7, [1500, 1500, 1500, 1000]),
        ("random:k=0", 7, [1000, 1000, 1000, 1000]),
        ("random:k=4", 7, [1200, 1200, 1200, 1200]),
    ],
)
def test_without_chance_each_rank_has_its_time(text, step, expected):
    model = imbalance(text)
    assert [model.compute_s(rank, 4, step, 1.0) * 1000 for rank in range(4)] == pytest.approx(expected)


def test_a_shifting_skew_gives_every_rank_every_place():
    model = ShiftingSkew(min_ms=10, max_ms=80)
    for rank in range(8):
        assert sorted(model.compute_s(rank, 8, step, 0) for step in range(100, 108)) == pytest.approx(
            [place / 100 for place in range(1, 9)]
        )


def is_slow(model, rank, steps):
    return [model.compute_s(rank, 1, step, 1.0) > 1 for step in range(steps)]


@pytest.mark.parametrize(("burst", "calm"), [(10, 90), (1, 4), (2.5, 2.5)])
def test_bursts_and_calm_last_as_long_as_they_claim(burst, calm):
    phases = []
    for rank in range(20):
        model = Bursts(burst_steps=burst, calm_steps=calm)
        phases += [(slow, len(list(run))) for slow, run in groupby(is_slow(model, rank, 5000))][1:-1]
    for state, mean in ((True, burst), (False, calm)):
        lengths = [length for slow, length in phases if slow is state]
        spread = math.sqrt(mean * (mean - 1))  # of the geometric distribution
        assert abs(statistics.fmean(lengths) - mean) <= SIGMAS * spread / math.sqrt(len(lengths))


def test_a_burst_predicts_the_next_step_and_not_the_next_rank():
    rows = [is_slow(Bursts(), rank, 5000) for rank in range(21)]
    step_pairs = [pair for row in rows for pair in pairwise(row)]
    rank_pairs = [pair for row, other in pairwise(rows) for pair in zip(row, other, strict=True)]
    assert statistics.correlation(*zip(*step_pairs, strict=True)) == pytest.approx(1 - 1 / 10 - 1 / 90, abs=0.02)
    assert abs(statistics.correlation(*zip(*rank_pairs, strict=True))) < 0.05


def test_bursts_are_as_common_at_the_first_step_as_later():
    ranks = 4000
    for step in (0, 1, 30):
        share = sum(Bursts(seed=2).compute_s(rank, ranks, step, 1.0) > 1 for rank in range(ranks)) / ranks
        assert abs(share - 0.1) < SIGMAS * math.sqrt(0.09 / ranks)


def test_videos_have_the_published_lengths_and_longer_ones_take_longer():
    model = Lengths(seed=1)
    videos = [
        (model.frames(rank, step), model.compute_s(rank, WORLD, step, 0)) for rank in range(8) for step in range(2500)
    ]
    frames = [length for length, _ in videos]
    assert 29 <= min(frames) <= max(frames) <= 1776
    assert statistics.fmean(frames) == pytest.approx(187, rel=0.02)
    assert statistics.pstdev(frames) == pytest.approx(97, rel=0.03)
    by_time = [length for length, _ in sorted(videos, key=lambda video: video[1])]
    assert by_time == sorted(by_time)
