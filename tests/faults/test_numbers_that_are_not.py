"""A gradient that is not finite changes no bit of anybody's weights but by being left out."""

import math

import pytest

import outpace
from tests.support import troubled
from tests.support.agreement import agree

AT, RANK, STEPS = [3, 4, 11], 1, 20


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_are_bit_for_bit_those_of_a_run_in_which_the_rank_gave_nothing(value):
    poisoned = outpace.spawn(troubled.not_finite, 3, (value, AT, RANK, STEPS))
    without = outpace.spawn(troubled.not_finite, 3, (0.0, AT, RANK, STEPS))
    assert agree(poisoned) == agree(without)
    assert poisoned[0].final == without[0].final
    assert [r.dropped for r in poisoned[0].stats.ranks] == [0, len(AT), 0]
    assert [r.dropped for r in without[0].stats.ranks] == [0, 0, 0]
