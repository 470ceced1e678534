"""What late work weighs, and that nothing of it is lost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.protocol.ledger import Ledger
from outpace.protocol.round import HELD, IN_A_ROW, MOST
from outpace.protocol.rules import Rules
from tests.support.protocol.drawn_logs import CHOICES, log_of
from tests.support.protocol.logs import arrive, done, started


def round_of(ledger: Ledger, *contributions: tuple[int, int, int]) -> tuple[float, ...]:
    """Plays a round of (rank, step, version), the last of which makes the quorum; what each weighs, by rank."""
    now_ns = ledger.round * 1_000_000
    for rank, step, version in contributions:
        ledger.apply(arrive(rank, version, step, row=step % 2, at_ns=now_ns))
    sealed = ledger.reducing
    assert sealed is not None
    ledger.apply(done(ledger, at_ns=now_ns))
    return sealed.weights


def test_what_is_on_time_weighs_one_and_nothing_is_recorded() -> None:
    ledger = started(2, quorum="full", repair="discount")
    assert round_of(ledger, (0, 1, 0), (1, 1, 0)) == ()


def test_what_is_late_weighs_less_and_its_rank_gets_the_rest_when_it_is_on_time() -> None:
    ledger = started(3, quorum="solo", grace=0, repair="discount")
    round_of(ledger, (0, 1, 0))
    round_of(ledger, (0, 2, 1))
    assert round_of(ledger, (1, 1, 0), (0, 3, 2)) == (1.0, pytest.approx(1 / 9))
    assert ledger.discount.owed(1) == pytest.approx(8 / 9)
    assert round_of(ledger, (1, 2, 3)) == (pytest.approx(3**0.5),), "no noisier than three of weight 1"
    assert ledger.discount.owed(1) == pytest.approx(17 / 9 - 3**0.5)


def test_full_weight_for_all_is_the_papers() -> None:
    ledger = started(3, quorum="solo", grace=0, repair="none")
    round_of(ledger, (0, 1, 0))
    assert round_of(ledger, (1, 1, 0), (0, 2, 1)) == ()


def test_a_rank_that_is_always_late_weighs_as_much_as_it_contributes_over_time() -> None:
    ledger = started(2, quorum="solo", grace=0, repair="discount")
    weights = []
    for turn in range(50):  # rank 1 needs five rounds for each of its contributions
        version = ledger.round
        for _ in range(5):
            round_of(ledger, (0, ledger.round + 1, ledger.round))
        weights.append(round_of(ledger, (1, turn + 1, version), (0, ledger.round + 1, ledger.round))[1])
    assert weights[0] == pytest.approx(1 / 36)
    assert weights[-1] == pytest.approx(1.0)
    assert sum(weights) > 50 - HELD - IN_A_ROW


def test_a_round_is_neither_a_longer_step_nor_a_noisier_one_than_with_everybody_in_it() -> None:
    ledger = started(2, quorum="solo", grace=0, repair="discount")
    for step in range(1, 9):
        round_of(ledger, (0, step, step - 1))
    round_of(ledger, (1, 1, 0), (0, 9, 8))
    assert round_of(ledger, (1, 2, 9)) == (pytest.approx(2**0.5),)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 5),
    st.sampled_from(("solo", "majority", "full", "auto")),
    st.sampled_from(("carry", "count", "drop")),
    st.booleans(),
    CHOICES,
)
def test_what_a_ranks_contributions_weigh_and_what_it_is_owed_is_their_number(
    world: int, quorum: str, late: str, one_at_a_time: bool, choices: list
) -> None:
    rules = Rules(world, quorum=quorum, late=late, grace=0, min_ranks=1, repair="discount", one_at_a_time=one_at_a_time)
    ledger, applied, weighed, seen = Ledger(rules), Counter[int](), Counter[int](), set()
    for event in log_of(rules, choices):
        ledger.apply(event)
        for record in [r for r in ledger.completed.values() if r.number not in seen and not r.void]:
            seen.add(record.number)
            weights = record.weights or (1.0,) * len(record.contributions)
            assert len(weights) == len(record.contributions)
            assert sum(weights) <= max(record.world, len(weights)) + 1e-9
            assert sum(w * w for w in weights) <= max(record.world, len(weights)) + 1e-9
            for contribution, weight in zip(record.contributions, weights, strict=True):
                is_late = record.staleness(contribution) > rules.usual_lag
                assert 0 < weight <= 1 if is_late else 1 <= weight <= MOST
                applied[contribution.rank] += 1
                weighed[contribution.rank] += weight
    for rank in range(world):
        assert weighed[rank] + ledger.discount.owed(rank) == pytest.approx(applied[rank])
        assert ledger.discount.owed(rank) >= 0
