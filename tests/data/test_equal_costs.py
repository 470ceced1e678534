"""Built-in workloads in batches of equal cost: the same samples, each once an epoch, and no batch costs more."""

from __future__ import annotations

from collections import Counter

import pytest

from outpace.data.balanced import EqualCosts
from outpace.errors import InvalidRules
from outpace.workloads import workload

CASES = [("sequences", 8), ("code", 4)]


@pytest.mark.parametrize(("name", "world"), CASES)
def test_an_epoch_has_every_sample_once(name, world):
    task = EqualCosts(workload(name), world, name)
    batches = task._batches(0)
    assert Counter(sample for batch in batches for sample in batch) == Counter(range(len(task._inner.lengths)))
    assert abs(task.steps_per_epoch - len(batches) / world) <= 0.5
    first, again = task.batch(0, 1, world)[1], task.batch(0, 1, world)[1]
    assert first.equal(again)
    assert len(first) == len(batches[1])


@pytest.mark.parametrize(("name", "world"), CASES)
def test_batches_cost_the_same_where_the_usual_ones_differ_by_far(name, world):
    usual, equal = workload(name), EqualCosts(workload(name), world, name)

    def costs(task):
        batches = (task.batch(step, rank, world)[0] for step in range(8) for rank in range(world))
        return sorted(task.cost(inputs, inputs) * task.size(len(inputs), world) for inputs in batches)

    found = costs(equal)
    assert found[-1] < 1.2
    assert found[1] > 0.7, "the very last batch of an epoch may be small"
    assert costs(usual)[-1] > 1.3


def test_where_all_samples_cost_the_same_there_is_nothing_to_balance():
    with pytest.raises(InvalidRules, match="the samples of digits all cost the same"):
        EqualCosts(workload("digits"), 4, "digits")
