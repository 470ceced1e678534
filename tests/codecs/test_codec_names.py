"""What holds for every codec: to be had by its name, checked, deterministic, and honest about what is not finite."""

import math

import pytest
import torch

from outpace.codecs import Codec, codec, contribution_seed, names
from outpace.codecs.base import chunk_generator
from outpace.codecs.ok_topk import OkTopk
from outpace.errors import InvalidRules, UnknownName
from outpace.vector import SUPPORTED
from tests.support.made_rows import coded_sum, made_rows, plain_sum

EVERY = ["none", "bf16", "global-qsgd", "global-qsgd:levels=15", "ok-topk", "ok-topk:density=1"]


def test_every_name_makes_a_codec():
    assert {text.partition(":")[0] for text in EVERY} == set(names())
    assert all(isinstance(codec(text), Codec) for text in EVERY)


def test_every_name_makes_a_new_codec_and_an_object_stays_itself():
    mine = codec("ok-topk")
    assert codec("ok-topk") is not mine
    assert codec(mine) is mine


@pytest.mark.parametrize(
    "text",
    [
        "ok-topk:density=0",
        "ok-topk:density=1.01",
        "ok-topk:density=nan",
        "ok-topk:density=true",
        "ok-topk:density=half",
        "global-qsgd:levels=0",
        "global-qsgd:levels=2.5",
        "global-qsgd:levels=true",
        "global-qsgd:levels=32768",
        "bf16:levels=3",
    ],
)
def test_options_that_cannot_work_are_refused_by_name(text):
    with pytest.raises(InvalidRules, match=text.partition(":")[2].partition("=")[0]):
        codec(text)


@pytest.mark.parametrize("dtype", SUPPORTED)
@pytest.mark.parametrize("factors", [[1.0] * 3, [1.0, 0.3, 2.0], [0.7, 1.0, 1.0], [1.0], [0.5]])
def test_rows_as_they_are_have_the_bits_of_one_after_the_other(factors, dtype):
    rows = made_rows(len(factors), 1000, dtype=dtype)
    assert torch.equal(coded_sum(codec("none"), rows, factors), plain_sum(rows, factors))


def test_unknown_names_and_objects_are_refused_with_the_known_ones():
    with pytest.raises(UnknownName, match="global-qsgd"):
        codec("qsgd")
    with pytest.raises(InvalidRules, match="ok-topk"):
        codec(3)


@pytest.mark.parametrize("dtype", SUPPORTED)
@pytest.mark.parametrize("text", EVERY)
def test_a_chunk_coded_twice_has_the_same_bits_and_leaves_rows_and_global_randomness_alone(text, dtype):
    rows = made_rows(3, 1000, dtype=dtype)
    before, random_state = [row.clone() for row in rows], torch.get_rng_state()
    factors = [1.0, 2.0, 0.5]
    once = coded_sum(codec(text), rows, factors, step=5, chunk=2)
    again = coded_sum(codec(text), rows, factors, step=5, chunk=2)
    assert torch.equal(once, again)
    assert all(torch.equal(row, old) for row, old in zip(rows, before, strict=True))
    assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.parametrize("text", EVERY)
def test_the_bits_do_not_depend_on_how_many_threads_reduce(text):
    rows, sums, threads = made_rows(4, 131_072), [], torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            sums.append(coded_sum(codec(text), rows, [1.0, 3.0, 0.7, 1.0]))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], sums[2])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", SUPPORTED)
@pytest.mark.parametrize("text", EVERY)
def test_what_is_not_finite_in_a_row_is_not_finite_in_the_sum(text, dtype, bad):
    for where in (0, 1, 2):
        for count in (1, 299):
            rows = made_rows(3, 300, dtype=dtype)
            rows[where][-count:] = bad
            assert not coded_sum(codec(text), rows).isfinite().all()


def test_opposite_infinities_do_not_cancel():
    for text in EVERY:
        rows = [torch.tensor([math.inf, 1.0]), torch.tensor([-math.inf, 1.0])]
        assert not coded_sum(codec(text), rows).isfinite().all()


@pytest.mark.parametrize("text", ["none", "ok-topk:density=1"])
def test_codecs_that_say_so_are_the_plain_sum(text):
    rows, factors = made_rows(4, 500, dtype=torch.bfloat16), [1.0, 3.0, 0.25, 2.0]
    assert codec(text).is_plain_sum
    assert torch.equal(coded_sum(codec(text), rows, factors), plain_sum(rows, factors))


@pytest.mark.parametrize("text", ["bf16", "global-qsgd", "ok-topk:density=0.5"])
def test_codecs_that_change_the_sum_say_so(text):
    rows = made_rows(4, 500)
    assert not codec(text).is_plain_sum
    assert not torch.equal(coded_sum(codec(text), rows), plain_sum(rows))


@pytest.mark.parametrize("text", ["none", "bf16", "global-qsgd"])
def test_codecs_without_memory_leave_rows_alone_and_refuse_the_state_of_others(text):
    mine, row = codec(text), made_rows(1, 10)
    before = row[0].clone()
    mine.deposited(1, row, b"\1")
    assert torch.equal(row[0], before)
    assert mine.state() == {}
    assert mine.in_flight() == []
    mine.load_state({})
    other = OkTopk(0.5)
    other.deposited(1, row, b"\1")
    with pytest.raises(InvalidRules, match="residual"):
        mine.load_state(other.state())


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_bf16_is_the_sum_of_rounded_rows(dtype):
    rows, factors = made_rows(5, 400, dtype=dtype), [1.0, 2.0, 0.3, 1.0, 4.0]
    rounded = [row.to(torch.bfloat16).to(dtype if dtype.itemsize >= 4 else torch.float32) for row in rows]
    assert torch.equal(coded_sum(codec("bf16"), rows, factors), plain_sum(rounded, factors))


def test_bf16_overflows_only_beyond_its_own_range():
    assert coded_sum(codec("bf16"), [torch.tensor([3.395e38])]).isfinite().all()
    assert coded_sum(codec("bf16"), [torch.tensor([3.40e38])]).isinf().all()


def test_contributions_and_chunks_have_seeds_of_their_own():
    places = [(rank, step, chunk) for rank in range(16) for step in range(32) for chunk in range(8)]
    seeds = {contribution_seed(rank, step) for rank, step, _ in places}
    assert len(seeds) == 16 * 32
    first = {chunk_generator(contribution_seed(r, s), c).initial_seed() % 2**32 for r, s, c in places}
    assert len(first) == len(places)
    plain = {chunk_generator(seed, chunk).initial_seed() % 2**32 for seed in range(64) for chunk in range(64)}
    assert len(plain) == 64 * 64  # even if seeds are small numbers that follow each other
