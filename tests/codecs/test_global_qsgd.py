"""Global-QSGD: whole numbers that add up exactly, right on average, and never off by more than a level."""

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.codecs import contribution_seed
from outpace.codecs.base import chunk_generator
from outpace.codecs.global_qsgd import MOST_LEVELS, GlobalQSGD, decode, encode, shared_scale
from tests.support.made_rows import coded_sum, made_rows, plain_sum

ROWS = st.integers(1, 6).flatmap(
    lambda count: st.lists(
        st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=5, max_size=5).map(torch.tensor),
        min_size=count,
        max_size=count,
    )
)


def codes_of(rows, levels, step=0, chunk=0):
    scale = shared_scale(rows, [1.0] * len(rows))
    seeds = [contribution_seed(rank, step) for rank in range(len(rows))]
    return [encode(r, scale, levels, chunk_generator(s, chunk)) for r, s in zip(rows, seeds, strict=True)], scale


def decoded(codes, scale, levels, dtype=torch.float32):
    out = torch.empty(codes.shape, dtype=dtype)
    decode(out, codes, scale, levels)
    return out


@given(ROWS, st.integers(1, 127))
@settings(max_examples=100, deadline=None)
def test_the_sum_is_decoded_from_the_sum_of_codes(rows, levels):
    codes, scale = codes_of(rows, levels)
    assert torch.equal(coded_sum(GlobalQSGD(levels), rows), decoded(sum(codes), scale, levels))


def test_decoding_the_sum_is_summing_the_decoded_bit_for_bit():
    rows, levels = made_rows(7, 200), 16
    rows[3][5] = 8.0  # a scale by which float32 divides without rounding
    codes, scale = codes_of(rows, levels)
    assert scale == 8.0
    parts = [decoded(code, scale, levels) for code in codes]
    for order in itertools.islice(itertools.permutations(parts), 0, None, 997):
        assert torch.equal(sum(order), coded_sum(GlobalQSGD(levels), rows))


def test_decoding_is_exact_up_to_the_rounding_of_the_last_digit():
    rows, levels = made_rows(5, 100), 15
    codes, scale = codes_of(rows, levels)
    found = coded_sum(GlobalQSGD(levels), rows)
    for value, total in zip(found.tolist(), sum(codes).tolist(), strict=True):
        exact = Fraction(scale) * total / levels
        assert abs(Fraction(value) - exact) <= abs(exact) * Fraction(2, 2**23)


@given(ROWS, st.integers(1, 127))
@settings(max_examples=100, deadline=None)
def test_no_code_is_larger_than_the_levels_and_none_is_off_by_a_level(rows, levels):
    codes, scale = codes_of(rows, levels)
    for row, code in zip(rows, codes, strict=True):
        assert code.abs().max() <= levels
        off = (decoded(code, scale, levels, torch.float64) - row.double()).abs()
        assert off.max() <= scale / levels * (1 + 1e-6)


@pytest.mark.parametrize("factors", [[1.0] * 8, [1.0, 2.0, 3.0, 0.5, 1.0, 0.0, 7.0, 1.0]])
def test_on_average_over_rounds_it_is_the_plain_sum(factors):
    rows, draws = made_rows(8, 1000), 200
    mine = GlobalQSGD(levels=15)
    sums = torch.stack([coded_sum(mine, rows, factors, step=step) for step in range(draws)]).double()
    off = sums.mean(0) - plain_sum([row.double() for row in rows], factors)
    scale = shared_scale(rows, factors)
    codes = torch.stack([row.double() * f / scale * 15 for row, f in zip(rows, factors, strict=True)])
    odds = (codes - codes.trunc()).abs()
    variance = (odds * (1 - odds)).sum(0) * (scale / 15) ** 2 / draws
    errors = off / variance.sqrt()
    assert abs(float(errors.mean())) < 4 / 1000**0.5  # over all entries
    assert 0.85 < float(errors.std()) < 1.15  # the variance is what it should be
    assert float(errors.abs().max()) < 4.5  # of 1000 entries


@given(st.permutations(range(6)), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_the_order_of_contributions_changes_no_bit(order, chunk):
    rows, factors = made_rows(6, 257), [1.0, 0.3, 2.0, 1.0, 5.0, 0.7]
    seeds = [contribution_seed(rank, 3) for rank in range(6)]
    shuffled = [[values[i] for i in order] for values in (rows, factors, seeds)]
    mine = GlobalQSGD()
    expected = coded_sum(mine, rows, factors, seeds=seeds, chunk=chunk)
    assert torch.equal(coded_sum(mine, shuffled[0], shuffled[1], seeds=shuffled[2], chunk=chunk), expected)


@pytest.mark.parametrize("contributors", [1, 2, 3, 8, 64, 127])
def test_by_default_equal_extreme_vectors_fill_int8_and_do_not_overflow_it(contributors):
    rows = [torch.tensor([3.0, -3.0, 0.0])] * contributors
    levels = GlobalQSGD().levels_for(contributors)
    codes, _ = codes_of(rows, levels)
    total = sum(codes)
    assert total.tolist() == [levels * contributors, -levels * contributors, 0]
    assert 64 <= total.max() <= 127
    assert torch.allclose(coded_sum(GlobalQSGD(), rows), plain_sum(rows), rtol=1e-6)


def test_more_contributors_than_int8_holds_are_coded_by_sign():
    assert GlobalQSGD().levels_for(500) == 1


def test_many_contributors_at_most_levels_do_not_overflow_the_sum():
    rows = [torch.tensor([1.0, -1.0])] * 1000
    assert coded_sum(GlobalQSGD(MOST_LEVELS), rows).tolist() == pytest.approx([1000, -1000])


def test_rows_of_zeros_sum_to_zero_and_zeros_stay_zero():
    assert coded_sum(GlobalQSGD(), [torch.zeros(9)] * 3).tolist() == [0.0] * 9
    assert not any(codes.any() for codes in codes_of([torch.zeros(9)] * 3, 15)[0])
    assert coded_sum(GlobalQSGD(), [torch.tensor([0.0, 1.0]), torch.tensor([0.0, -2.0])])[0] == 0.0


def test_the_smallest_and_the_largest_numbers_are_coded_as_well():
    tiny = torch.tensor([2.0**-149, -(2.0**-149)])
    assert torch.equal(coded_sum(GlobalQSGD(), [tiny]), tiny)
    huge = torch.tensor([3.4e38, -1e38])
    assert coded_sum(GlobalQSGD(), [huge]).isfinite().all()
    assert not coded_sum(GlobalQSGD(), [huge, huge]).isfinite().all()  # as the plain sum


def test_one_contributor_with_many_levels_is_nearly_itself():
    row = made_rows(1, 1000)[0]
    off = (coded_sum(GlobalQSGD(MOST_LEVELS), [row]) - row).abs().max()
    assert off <= row.abs().max() / MOST_LEVELS * 1.001


def test_ranks_steps_and_chunks_round_independently():
    row = torch.full((1000,), 0.5)
    row[0] = 1.0
    ups = [
        encode(row, 1.0, 1, chunk_generator(contribution_seed(rank, step), chunk)).double()[1:] - 0.5
        for rank, step, chunk in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    ]
    for one, other in itertools.combinations(ups, 2):
        assert abs(float((one * other).mean())) < 0.25 * 4 / 999**0.5
    sums = [coded_sum(GlobalQSGD(1), [row], step=step, chunk=chunk) for step, chunk in [(0, 0), (1, 0), (0, 1)]]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(sums, 2))
