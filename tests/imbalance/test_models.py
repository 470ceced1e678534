import random

import pytest

from outpace.errors import InvalidRules, UnknownName
from outpace.imbalance import Balanced, RandomRanks, imbalance, names

STEPS = 400


def delays(model, world, step):
    return [model.delay_s(rank, world, step) for rank in range(world)]


def test_every_rank_computes_the_same_draw():
    ranks = [imbalance("random:k=3,delay_ms=50", seed=5) for _ in range(8)]
    for step in range(50):
        assert len({tuple(delays(model, 8, step)) for model in ranks}) == 1


def test_the_draw_does_not_depend_on_which_steps_were_asked_before():
    model = RandomRanks(k=2, seed=3)
    forward = [delays(model, 8, step) for step in range(20)]
    backward = [delays(model, 8, step) for step in reversed(range(20))]
    assert forward == backward[::-1]


@pytest.mark.parametrize(("k", "world"), [(0, 4), (1, 1), (1, 8), (3, 8), (8, 8)])
def test_exactly_k_ranks_are_delayed_at_each_step(k, world):
    model = RandomRanks(k=k, delay_ms=300)
    for step in range(STEPS):
        assert sorted(delays(model, world, step)) == [0.0] * (world - k) + [0.3] * k


def test_every_rank_has_its_share_of_the_delays():
    model = RandomRanks(k=2, delay_ms=1000, seed=1)
    for rank in range(8):
        share = sum(model.delay_s(rank, 8, step) for step in range(STEPS)) / STEPS
        assert share == pytest.approx(2 / 8, abs=0.1)  # more than four standard deviations


def test_seeds_give_different_draws():
    runs = {tuple(tuple(delays(RandomRanks(seed=seed), 8, step)) for step in range(20)) for seed in range(5)}
    assert len(runs) == 5


def test_the_global_generator_is_left_alone():
    random.seed(1)
    expected = random.random()
    random.seed(1)
    RandomRanks(k=2).delay_s(0, 8, 0)
    assert random.random() == expected


def test_none_delays_nobody():
    assert imbalance("none") == Balanced()
    assert delays(imbalance("none"), 8, 3) == [0.0] * 8


def test_a_seed_among_the_options_goes_first():
    assert imbalance("random:seed=9", seed=4) == RandomRanks(seed=9)
    assert imbalance("random", seed=4) == RandomRanks(seed=4)


def test_a_model_passes_through():
    model = RandomRanks(k=2)
    assert imbalance(model) is model


def test_more_ranks_than_the_world_has_cannot_be_delayed():
    with pytest.raises(InvalidRules, match=r"k=9 ranks cannot be delayed in a world of 8; use k=8 or less"):
        imbalance("random:k=9").delay_s(0, 8, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("random:k=-1", "k=-1 must be a whole number"),
        ("random:k=1.5", "k=1.5 must be a whole number"),
        ("random:k=true", "k=True must be a whole number"),
        ("random:delay_ms=-3", "delay_ms=-3 must be a number"),
        ("random:delay_ms=inf", "delay_ms=inf must be a number"),
        ("random:delay_ms=long", "delay_ms='long' must be a number"),
        ("random:seed=x", "seed='x' must be a whole number"),
        ("random:speed=1", "no option 'speed'; it has k, delay_ms, seed"),
        ("random:k", "not of the form option=value"),
        ("none:k=1", "no option 'k'; it has none"),
    ],
)
def test_bad_options_are_named(text, message):
    with pytest.raises(InvalidRules, match=message):
        imbalance(text)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownName, match=r"no imbalance is called 'randon'; did you mean random"):
        imbalance("randon")
    assert names() == ["none", "random"]
