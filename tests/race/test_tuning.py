"""Learning rates that suit each system are found in simulated time."""

from __future__ import annotations

from outpace.race.result import Entry, Settings
from outpace.race.tuning import FACTORS, tuned
from outpace.workloads.base import LOSS

SETTINGS = Settings("hyperplane", ranks=2, rounds=6, microbatches=2, tune=True)


def test_the_best_of_a_few_learning_rates_is_taken_and_all_are_told():
    heard: list[str] = []
    for name in ("ddp", "torch-post-local-sgd", "wagma"):
        found = tuned(Entry(name, name), SETTINGS, 6, LOSS, heard.append)
        assert [factor for factor, _ in found.tried] == list(FACTORS)
        losses = dict(found.tried)
        assert losses[found.learning_rate] == min(losses.values()), "the lowest loss is the best"
        assert len(set(losses.values())) == len(FACTORS), "each was really trained with"
    assert len(heard) == 3 * len(FACTORS)
    assert heard[0] == "ddp: trying 0.5 times the learning rate, in simulated time"
