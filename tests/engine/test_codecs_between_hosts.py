"""Codecs between hosts: the same bits on all ranks, those of one machine as far as promised, and nothing is lost."""

import math

import pytest
import torch

import outpace
from tests.support import coded

EVERY = ["none", "bf16", "global-qsgd", "ok-topk"]
STEPS = 6


@pytest.fixture(scope="module")
def one_machine():
    return outpace.spawn(coded.train_each, 4, (EVERY, STEPS))[0]


@pytest.mark.parametrize("hosts", [2, 3])
def test_all_ranks_have_the_same_bits_with_every_codec_and_those_of_one_machine_as_promised(one_machine, hosts):
    runs = outpace.spawn(coded.train_each, 4, (EVERY, STEPS), hosts=hosts)
    for name, expected, *found in zip(EVERY, one_machine, *runs, strict=True):
        assert len({each.digest for each in found}) == 1, name
        if name == "global-qsgd":
            assert found[0].digest == expected.digest, "whole numbers: neither order nor grouping changes a bit"
        for here, there in zip(found[0].weights, expected.weights, strict=True):
            most = float(there.abs().max())
            torch.testing.assert_close(here, there, rtol=0, atol=(2**-6 if name == "bf16" else 1e-5) * most)


@pytest.mark.parametrize(
    ("strategy", "hosts"),
    [
        *(("allreduce", 2), ("allreduce", 4), ("eager-majority:repair=none", 2), ("eager-majority:repair=none", 3)),
        ("eager:quorum=2,late=drop", 2),
    ],
)
def test_ok_topk_of_several_hosts_applies_or_keeps_every_gradient(strategy, hosts):
    """Of four ranks, because a quarter of a whole number is exact."""
    accounts = outpace.spawn(coded.account, 4, (coded.named(strategy, "ok-topk"), 12), hosts=hosts)
    for index in range(len(coded.SHAPES)):
        given = sum(each.given[index] for each in accounts)
        kept = sum(each.kept[index] for each in accounts)
        for each in accounts:
            assert torch.equal(each.applied[index] + kept, given)
        assert kept.any()


@pytest.mark.parametrize(("hosts", "value"), [(2, math.nan), (3, math.inf)])
def test_a_contribution_that_is_not_finite_is_refused_on_its_host_and_all_go_on(hosts, value):
    for run in zip(*outpace.spawn(coded.poisoned_each, 3, (value, EVERY, 5), hosts=hosts), strict=True):
        for weights, dropped in run:
            assert weights == pytest.approx([-(4 + 2 / 3)] * 4)
            assert dropped == [0, 1, 0]
