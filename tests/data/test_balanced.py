"""Batches of equal cost: every sample once, costs alike, little padding, as random as that allows."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import outpace
from outpace.data import LengthBalancedBatches
from outpace.errors import InvalidRules

LENGTHS = [max(4, round(random.Random(n).lognormvariate(3.5, 0.8))) for n in range(3000)]


def all_batches(sampler: LengthBalancedBatches, epoch: int = 0) -> list[list[int]]:
    return sampler.balanced.items(epoch)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=300), st.integers(1, 40), st.sampled_from([None, 0.05, 0.3]))
@settings(max_examples=60, deadline=None)
def test_every_sample_is_in_one_batch_whatever_the_lengths(lengths, batch_size, padding):
    sampler = LengthBalancedBatches(lengths, batch_size, padding=padding)
    for epoch in (0, 3):
        assert sorted(sample for batch in all_batches(sampler, epoch) for sample in batch) == list(range(len(lengths)))


@pytest.mark.parametrize("cost", [None, np.square])
@pytest.mark.parametrize("padding", [None, 0.1])
def test_batches_cost_the_same(cost, padding):
    sampler = LengthBalancedBatches(LENGTHS, 32, cost=cost, padding=padding)
    costs = np.array([sampler.balanced.cost_of(batch) for batch in all_batches(sampler)])
    random_ones = np.random.default_rng(0).permutation(len(LENGTHS)).reshape(-1, 30)
    before = np.array([sampler.balanced.cost_of(batch.tolist()) for batch in random_ones])
    assert costs.std() / costs.mean() < 0.5 * before.std() / before.mean()


def test_padding_stays_within_its_bound_and_windows_are_no_larger_than_needed():
    loose, tight = (LengthBalancedBatches(LENGTHS, 16, padding=bound) for bound in (0.3, 0.05))
    assert loose.balanced.padded_share(5) < 0.3
    assert tight.balanced.padded_share(5) < 0.06
    assert loose.balanced.window < tight.balanced.window


def test_epochs_differ_and_seeds_agree():
    one, other = LengthBalancedBatches(LENGTHS, 32, seed=4), LengthBalancedBatches(LENGTHS, 32, seed=4)
    assert all_batches(one, 2) == all_batches(other, 2) != all_batches(one, 3)
    assert one.order.digest == other.order.digest
    assert one.order.digest != LengthBalancedBatches(LENGTHS[::-1], 32, seed=4).order.digest


def test_a_batch_has_no_more_samples_than_memory_allows():
    sampler = LengthBalancedBatches(LENGTHS, 32, most=40)
    assert max(map(len, all_batches(sampler))) == 40


def test_split_over_ranks_all_have_equally_many_and_none_is_left_out(monkeypatch):
    dealt = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "4")
        sampler = LengthBalancedBatches(LENGTHS, 32, data="split")
        dealt.append(list(sampler))
        assert len(sampler) == len(dealt[0]) == len(dealt[rank])
    assert {sample for own in dealt for batch in own for sample in batch} == set(range(len(LENGTHS)))


@pytest.mark.parametrize("weigh", ["tokens", "samples"])
def test_contributions_are_weighed_by_their_tokens_where_the_strategy_says_so(weigh):
    weight = torch.nn.Parameter(torch.zeros(1))
    seen = []
    strategy = "eager:quorum=solo,normalise=samples"
    inner = torch.optim.SGD([weight], lr=1.0)
    noted = seen.append
    with outpace.DistributedOptimizer(
        inner, strategy, on_round=lambda r: noted(r.contributions[0].samples)
    ) as optimizer:
        sampler = LengthBalancedBatches(LENGTHS[:300], 32, weigh=weigh, dataset=range(300))
        wanted = []
        for batch in sampler:
            wanted.append(sampler.weight_of(batch))
            weight.grad = torch.ones(1)
            optimizer.step()
    assert seen == wanted
    assert sum(wanted) == (300 if weigh == "samples" else sum(LENGTHS[:300]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: LengthBalancedBatches([], 4), "one number for each sample"),
        (lambda: LengthBalancedBatches([[3, 4], [5]], 4), "one number for each sample"),
        (lambda: LengthBalancedBatches([3, 0, 2], 4), "sample 1 is 0"),
        (lambda: LengthBalancedBatches([3, float("nan")], 4), "sample 1 is nan"),
        (lambda: LengthBalancedBatches([3, 4], 4, dataset=range(3)), "2 lengths for a set of 3 samples"),
        (lambda: LengthBalancedBatches([3, 4], 4, cost=lambda n: n[:1]), r"for each of the 2 lengths; it gave \(1,\)"),
        (lambda: LengthBalancedBatches([3, 4], 4, padding=1.5), "padding=1.5"),
        (lambda: LengthBalancedBatches([3, 4], 0), "batch_size=0"),
        (lambda: LengthBalancedBatches([3, 4], 4, data="all"), "data='all'"),
        (lambda: LengthBalancedBatches([3, 4], 4, weigh="bytes"), "weigh='bytes'"),
        (lambda: LengthBalancedBatches([3, 4], 4, most=0), "most=0"),
    ],
)
def test_what_cannot_work_is_refused_by_name(given, said):
    with pytest.raises(InvalidRules, match=said):
        given()
