"""Learning rates that suit each system are found in simulated time."""

from __future__ import annotations

import pytest

from outpace.race.result import Entry, Settings
from outpace.race.run import FACTORS, tuned
from outpace.workloads.base import ACCURACY, LOSS, Metric

SETTINGS = Settings("digits", ranks=2, rounds=6, microbatches=2, tune=True)


@pytest.mark.parametrize(("metric", "best"), [(ACCURACY, max), (LOSS, min)], ids=["highest", "lowest"])
def test_the_best_of_a_few_learning_rates_is_taken_and_all_are_told(metric: Metric, best):
    heard: list[str] = []
    for name in ("ddp", "torch-post-local-sgd", "wagma"):
        found = tuned(Entry(name, name), SETTINGS, 6, metric, heard.append)
        assert [factor for factor, _ in found.tried] == list(FACTORS)
        figures = dict(found.tried)
        assert figures[found.learning_rate] == best(figures.values())
        assert len(set(figures.values())) == len(FACTORS), "each was really trained with"
    assert len(heard) == 3 * len(FACTORS)
    assert heard[0] == "ddp: trying 0.5 times the learning rate, in simulated time"
