"""What holds for every model: pure, never negative, checked, and to be had by its name alone."""

import random

import pytest

from outpace.errors import InvalidRules, UnknownName
from outpace.imbalance import Balanced, RandomRanks, imbalance, names

ALONE = [name for name in names() if name != "trace"]  # a trace needs its file
SEEDED = [name for name in ALONE if hasattr(imbalance(name), "seed")]


def times(model, world, steps, base_s=0.1):
    return [model.compute_s(rank, world, step, base_s) for step in steps for rank in range(world)]


@pytest.mark.parametrize("world", [1, 8])
@pytest.mark.parametrize("text", [*ALONE, "normal:sd_ms=1000"])
def test_every_name_works_alone_and_is_never_negative(text, world):
    model = imbalance(text)
    for base_s in (0.0, 0.1):
        assert all(isinstance(time, float) and time >= 0 for time in times(model, world, range(200), base_s))


@pytest.mark.parametrize("name", ALONE)
def test_the_answer_does_not_depend_on_what_was_asked_before(name):
    model, places = imbalance(name, seed=3), [(rank, step) for rank in range(8) for step in range(0, 2000, 67)]
    in_order = {place: model.compute_s(place[0], 8, place[1], 0.1) for place in places}
    random.Random(1).shuffle(places)
    shuffled, other = imbalance(name, seed=3), imbalance(name, seed=3)
    for rank, step in places:
        assert in_order[rank, step] == shuffled.compute_s(rank, 8, step, 0.1) == model.compute_s(rank, 8, step, 0.1)
    assert other == model
    assert other.compute_s(5, 8, 1943, 0.1) == in_order[5, 1943]


@pytest.mark.parametrize("name", ALONE)
def test_the_global_generator_is_left_alone(name):
    before = random.getstate()
    times(imbalance(name), 8, range(50))
    assert random.getstate() == before


@pytest.mark.parametrize("name", SEEDED)
def test_seeds_give_different_draws(name):
    assert len({tuple(times(imbalance(name, seed), 8, range(0, 500, 10))) for seed in (-1, 0, 1, 2, 2**70)}) == 5


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_among_the_options_goes_first(name):
    assert imbalance(f"{name}:seed=9", seed=4) == imbalance(name, seed=9) != imbalance(name, seed=4)


@pytest.mark.parametrize(("k", "world"), [(0, 4), (1, 1), (1, 8), (3, 8), (8, 8)])
def test_exactly_k_ranks_are_delayed_at_each_step(k, world):
    model = RandomRanks(k=k, delay_ms=300)
    for step in range(100):
        assert sorted(times(model, world, [step], base_s=0)) == [0.0] * (world - k) + [0.3] * k


def test_every_rank_has_its_share_of_the_delays():
    model = RandomRanks(k=2, delay_ms=1000, seed=1)
    for rank in range(8):
        share = sum(model.compute_s(rank, 8, step, 0) for step in range(400)) / 400
        assert share == pytest.approx(2 / 8, abs=0.1)  # more than four standard deviations


def test_a_model_passes_through():
    assert imbalance("none") == Balanced()
    model = RandomRanks(k=2)
    assert imbalance(model) is model


@pytest.mark.parametrize("text", ["random:k=9", "slow:k=9"])
def test_more_ranks_than_the_world_has_cannot_be_delayed(text):
    with pytest.raises(InvalidRules, match=r"k=9 ranks cannot be delayed in a world of 8; use k=8 or less"):
        imbalance(text).compute_s(0, 8, 0, 0.1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("random:k=-1", "k=-1 must be a whole number of ranks, 0 or more"),
        ("random:k=1.5", "k=1.5 must be a whole number"),
        ("random:k=true", "k=True must be a whole number"),
        ("random:delay_ms=-3", "delay_ms=-3 must be a finite number, 0 or more"),
        ("random:delay_ms=inf", "delay_ms=inf must be a finite number"),
        ("random:delay_ms=nan", "delay_ms=nan must be a finite number"),
        ("random:delay_ms=true", "delay_ms=True must be a finite number"),
        ("random:delay_ms=long", "delay_ms='long' must be a finite number"),
        ("skew:step_ms=-1", "step_ms=-1 must be"),
        ("skew:first_ms=-1", "first_ms=-1 must be"),
        ("shifting-skew:min_ms=-1", "min_ms=-1 must be"),
        ("shifting-skew:max_ms=49", "max_ms=49 must be a finite number, 50 or more"),
        ("slow:k=none", "k='none' must be a whole number"),
        ("slow:factor=0.9", "factor=0.9 must be a finite number, 1 or more"),
        ("normal:mean_ms=-1", "mean_ms=-1 must be"),
        ("normal:sd_ms=-1", "sd_ms=-1 must be"),
        ("lognormal:mean_ms=0", "mean_ms=0 must be a finite number above 0"),
        ("lognormal:sd_ms=-1", "sd_ms=-1 must be"),
        ("gamma:mean_ms=0", "mean_ms=0 must be"),
        ("gamma:sd_ms=0", "sd_ms=0 must be"),
        ("exponential:mean_ms=nan", "mean_ms=nan must be"),
        ("pareto:min_ms=-1", "min_ms=-1 must be"),
        ("pareto:alpha=1", "alpha=1 must be a finite number above 1"),
        ("pauses:every=0", "every=0 must be a finite number, 1 or more"),
        ("pauses:pause_ms=-1", "pause_ms=-1 must be"),
        ("bursts:factor=0", "factor=0 must be"),
        ("bursts:burst_steps=0.5", "burst_steps=0.5 must be"),
        ("bursts:calm_steps=0", "calm_steps=0 must be"),
        ("lengths:mean_ms=0", "mean_ms=0 must be"),
        ("rollouts:scale=0", "scale=0 must be"),
        ("random:speed=1", "no option 'speed'; it has k, delay_ms, seed"),
        ("bursts:speed=1", "it has factor, burst_steps, calm_steps, seed$"),
        ("random:k", "not of the form option=value"),
        ("none:k=1", "no option 'k'; it has none"),
        *((f"{name}:seed=x", "seed='x' must be a whole number") for name in SEEDED),
    ],
)
def test_bad_options_are_named(text, message):
    with pytest.raises(InvalidRules, match=message):
        imbalance(text)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownName, match=r"no imbalance is called 'randon'; did you mean random"):
        imbalance("randon")
