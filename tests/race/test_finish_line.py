"""Ranks that must be in step end after the same step, whenever they look at the clock."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.race import rank as rank_module
from outpace.race.rank import FinishLine


class Clock:
    """Moves by so much whenever it is looked at, and when it is moved."""

    def __init__(self):
        self.now = self.tick = 0.0

    def monotonic(self):
        self.now += self.tick
        return self.now


def test_after_a_number_of_steps_it_is_over():
    line = FinishLine(2, steps=5, seconds=None)
    assert list(line.steps(0, is_strict=False)) == list(line.steps(1, is_strict=True)) == [0, 1, 2, 3, 4]
    assert line.progress(2.5) == 0.5


@given(order=st.lists(st.integers(0, 2), max_size=60), moves=st.lists(st.floats(0, 3), max_size=60))
def test_ranks_in_step_end_after_the_same_step(order, moves):
    """Each rank begins its next step whenever it is its turn, while time goes on."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_module, "time", clock)
        line = FinishLine(3, steps=None, seconds=10)
        ranks = [line.steps(rank, is_strict=True) for rank in range(3)]
        made = [0, 0, 0]
        for rank, seconds in itertools.zip_longest(order, moves):
            clock.now += seconds or 0.0
            if rank is not None:
                made[rank] += next(ranks[rank], None) is not None
        clock.tick = 1.0
        made = [steps + sum(1 for _ in rank) for steps, rank in zip(made, ranks, strict=True)]
    assert len(set(made)) == 1


def test_ranks_that_need_not_be_in_step_end_when_their_time_is_up(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(rank_module, "time", clock)
    line = FinishLine(2, steps=None, seconds=10)
    steps = line.steps(0, is_strict=False)
    assert next(steps) == 0
    clock.now = 5.0
    assert line.progress(1) == 0.5
    assert next(steps) == 1
    clock.now = 10.0
    assert list(steps) == []


def test_shared_mini_batches_are_those_of_all_ranks_and_the_clock_ends_a_race_by_time():
    assert FinishLine(4, 10, None).total(4) == 40
    assert list(FinishLine(4, None, 1e-9).while_time()) == []
    assert next(FinishLine(4, 10, None).while_time()) is None
