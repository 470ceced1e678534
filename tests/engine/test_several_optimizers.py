"""Several optimizers in one script, in real processes: nobody waits for a rank that waits in another of its own."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.launches import in_one_launch
from tests.support.several import contributions, train

UNEVEN = (2, 3, 5, 7)  #: whoever has less data waits in one optimizer's finish() until all are there
CASES = {
    "two": ("eager-majority", UNEVEN, (0, 1)),
    "two, which meet": ("eager-majority", UNEVEN, (0, 1), 2),
    "three": ("eager:quorum=3", UNEVEN, (0, 0, 1, 2, 2)),
    "lock-step": ("allreduce", UNEVEN, (0, 1)),
    "averaging": ("d-psgd", UNEVEN, (0, 1)),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("hosts", "names"), [(1, list(CASES)), (2, ["two, which meet", "averaging"])])
def test_uneven_data_holds_nobody_up(hosts: int, names: list[str]) -> None:
    for name, results in in_one_launch(train, 4, {name: CASES[name] for name in names}, hosts=hosts).items():
        assert all(result.weights == results[0].weights for result in results), name
        if name == "averaging":
            continue
        loop = CASES[name][2]
        for optimizer, times in Counter(loop).items():
            given = [step for round_ in contributions(results, optimizer) for step in round_]
            assert Counter(rank for rank, _ in given) == {rank: times * steps for rank, steps in enumerate(UNEVEN)}, (
                name
            )
            assert len(set(given)) == len(given), name
