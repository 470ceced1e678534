"""Sums over hosts: the same bits everywhere, and those of one machine as far as the codec promises it."""

import math

import pytest
import torch

from outpace.codecs import Codec
from outpace.engines.cluster.group import Abandoned
from outpace.engines.cluster.wire import wire_of
from outpace.errors import OutpaceError
from outpace.vector import SUPPORTED
from tests.support.made_hosts import everywhere, made, on_one_machine, over_hosts, reduced, sparse

EVERY = ["none", "bf16", "global-qsgd", "global-qsgd:levels=90", "global-qsgd:levels=9000", "ok-topk:density=0.05"]
SHARES = [(2, 2), (1, 3), (3, 0), (2, 1, 1), (0, 2, 0), (1,)]  #: contributions of each host


def given_to(text, shares, dtype=torch.float32):
    given = made(shares, dtype=dtype)
    return sparse(given, 0.05) if text.startswith("ok-topk") else given


@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("text", EVERY)
def test_all_hosts_end_with_the_same_bits_which_are_near_those_of_one_machine(text, shares):
    given = given_to(text, shares)
    found = over_hosts(text, given)
    assert all(torch.equal(found[0], other) for other in found)
    expected = on_one_machine(text, given)
    off = (found[0] - expected).abs()
    assert float(off.max()) <= (1e-5 if text != "bf16" else 2**-6) * float(expected.abs().max())


@pytest.mark.parametrize("dtype", SUPPORTED)
@pytest.mark.parametrize("text", EVERY)
def test_every_dtype_travels(text, dtype):
    given = given_to(text, (2, 1), dtype)
    found = over_hosts(text, given)
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], on_one_machine(text, given), rtol=2**-6, atol=0.5 if text == "bf16" else 1e-5)


@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("text", ["global-qsgd", "global-qsgd:levels=90", "global-qsgd:levels=32767"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_global_qsgd_has_the_bits_of_one_machine(text, shares, dtype):
    given = made(shares, dtype=dtype)
    expected = on_one_machine(text, given)
    for found in over_hosts(text, given):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("levels", [1, 42, 43, 10_922, 10_923, 32_767])
def test_global_qsgd_does_not_overflow_what_it_is_sent_in(levels):
    """Three contributors: 42 levels are the most for int8, and 10,922 for int16."""
    given = made((2, 1))
    given = given._replace(rows=[torch.full_like(row, 3.0) for row in given.rows], factors=[1.0] * 3)
    given.rows[0][::2] = given.rows[1][::2] = given.rows[2][::2] = -3.0
    found = over_hosts(f"global-qsgd:levels={levels}", given)
    torch.testing.assert_close(found[0], 3 * given.rows[0], rtol=1e-6, atol=0)


def test_bf16_sums_of_two_hosts_are_rounded_once_each_and_once_together():
    given = made((2, 2))
    rows = [row.to(torch.bfloat16).float() * f for row, f in zip(given.rows, given.factors, strict=True)]
    one, other = (rows[0] + rows[1]).to(torch.bfloat16), (rows[2] + rows[3]).to(torch.bfloat16)
    assert torch.equal(over_hosts("bf16", given)[0], (one.float() + other.float()).to(torch.bfloat16).float())


@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("density", [0.001, 0.05, 0.5, 0.99])
def test_ok_topk_of_whole_numbers_is_exactly_that_of_one_machine(shares, density):
    """Which float32 adds without rounding, in any order; with many ties and entries that cancel."""
    text, given = f"ok-topk:density={density}", sparse(made(shares, whole=True), density)
    expected = on_one_machine(text, given)
    for found in over_hosts(text, given):
        assert torch.equal(found, expected)


def test_density_one_is_the_plain_sum():
    given = made((2, 1))
    assert torch.equal(over_hosts("ok-topk:density=1", given)[0], over_hosts("none", given)[0])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("text", EVERY)
def test_what_is_not_finite_on_one_host_is_not_finite_on_all_and_spoils_its_own_chunk_alone(text, bad):
    given = given_to(text, (2, 1, 1))
    given.rows[1][2100] = bad
    found = over_hosts(text, given)
    hurt = [[bool(chunk.isfinite().all()) for chunk in torch.split(each, given.sizes)] for each in found]
    assert hurt == [[True, True, False, *[True] * 6]] * 3


@pytest.mark.parametrize("text", EVERY)
def test_opposite_infinities_of_two_hosts_do_not_cancel(text):
    given = given_to(text, (1, 1))
    given.rows[0][5], given.rows[1][5] = math.inf, -math.inf
    assert not any(found.isfinite().all() for found in over_hosts(text, given))


@pytest.mark.parametrize("text", EVERY)
def test_a_wire_goes_on_in_a_new_group_after_one_that_was_abandoned_half_way(text):
    given = given_to(text, (2, 1))
    wires = [wire_of(given.sums(text)) for _ in range(2)]

    def begin_alone(group):
        if group.host == 0:  # the other one does not come
            group.is_over = True
            with pytest.raises(Abandoned):
                reduced(group, wires[0], given)

    everywhere(2, begin_alone)
    found = everywhere(2, lambda group: reduced(group, wires[group.host], given))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], over_hosts(text, given)[0])


def test_a_codec_without_a_wire_is_refused_rather_than_sent_as_something_else():
    class Halved(Codec):
        is_plain_sum = False

    sums = made((1, 1)).sums("none")
    sums.codec = Halved()
    with pytest.raises(OutpaceError, match="has no wire"):
        wire_of(sums)
