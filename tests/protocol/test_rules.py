"""What cannot work is refused before a run begins, in words that say what to do."""

from __future__ import annotations

import math

import pytest

from outpace.errors import InvalidRules
from outpace.protocol.rules import Rules, needed


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"world": 0}, "a world of 0 ranks cannot train"),
        ({"quorum": "most"}, "quorum='most' is unknown; choose one of auto, solo, majority"),
        ({"quorum": 5}, 'quorum=5 is larger than the world of 4 ranks.*Use quorum="full"'),
        ({"quorum": 0}, "quorum=0 must be at least 1"),
        ({"quorum": 1.5}, "quorum=1.5 as a fraction"),
        ({"quorum": 0.0}, "quorum=0.0 as a fraction"),
        ({"quorum": True}, "quorum=True must be a name"),
        ({"quorum": None}, "quorum=None must be a name"),
        ({"late": "lose"}, "late='lose' is unknown; choose one of carry, count, drop"),
        ({"normalise": "total"}, "normalise='total' is unknown; choose one of world, contributors, samples"),
        ({"max_staleness": 0}, "max_staleness=0 must be a whole number of rounds, at least 1"),
        ({"max_staleness": 1.5}, "max_staleness=1.5 must be a whole number"),
        ({"grace": -1}, 'grace=-1 must be "auto" or a number of seconds'),
        ({"grace": math.inf}, "grace=inf must be"),
        ({"grace": math.nan}, "grace=nan must be"),
        ({"grace": "long"}, "grace='long' must be"),
        ({"min_ranks": 0}, "min_ranks=0 must lie between 1 and the world of 4"),
        ({"min_ranks": 5}, "min_ranks=5 must lie between 1 and the world of 4"),
    ],
)
def test_a_choice_that_cannot_work_is_refused_with_its_reason(choices: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRules, match=words):
        Rules(**{"world": 4, **choices})  # type: ignore[arg-type]


@pytest.mark.parametrize("quorum", ["solo", "majority", "majority-random", "full", "auto", 1, 4, 0.01, 1.0])
def test_every_documented_quorum_is_accepted(quorum: str | int | float) -> None:
    assert Rules(4, quorum=quorum).quorum == quorum


@pytest.mark.parametrize("ranks", range(1, 34))
def test_majority_is_at_least_half_counted_exactly(ranks: int) -> None:
    assert 2 * needed("majority", ranks) >= ranks
    assert 2 * (needed("majority", ranks) - 1) < ranks


@pytest.mark.parametrize(
    ("quorum", "ranks", "expected"),
    [
        ("solo", 8, 1),
        ("full", 8, 8),
        ("full", 0, 1),
        ("majority", 0, 1),
        (3, 8, 3),
        (0.5, 8, 4),
        (0.5, 7, 4),
        (0.7, 10, 7),
        (0.1, 30, 3),
        (0.3, 10, 3),
        (0.01, 8, 1),
        (1.0, 8, 8),
    ],
)
def test_needed_is_exact_for_every_quorum_that_is_a_count(quorum: str | int | float, ranks: int, expected: int) -> None:
    assert needed(quorum, ranks) == expected


def test_a_run_may_not_shrink_below_its_first_quorum_unless_told() -> None:
    assert Rules(8, quorum="majority").least_ranks == 4
    assert Rules(8, quorum="full").least_ranks == 8
    assert Rules(8, quorum="full", min_ranks=2).least_ranks == 2
    assert Rules(8, quorum="solo").least_ranks == 1


def test_equal_choices_are_equal_as_plain_values() -> None:
    assert Rules(4).to_dict() == Rules(4).to_dict()
    assert Rules(4).to_dict() != Rules(4, late="drop").to_dict()
