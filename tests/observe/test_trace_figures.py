import pytest

from outpace.observe import figures
from outpace.observe.reader import read_trace
from tests.support import made_traces
from tests.support.made_traces import header, steps, write


@pytest.fixture
def uneven(tmp_path):
    """Rank 1 computes twice as long at every other step; communication takes 2 ms, applying 1."""
    write(tmp_path, 0, [header(0, 2), *steps([(10, 12, 1), (10, 2, 1)] * 3)])
    write(tmp_path, 1, [header(1, 2), *steps([(20, 2, 1), (10, 2, 1)] * 3)])
    return read_trace(tmp_path)


def test_communication_is_what_the_last_rank_to_be_ready_waits(uneven):
    assert figures.communication_s(uneven) == pytest.approx(0.002)


def test_waiting_is_what_goes_beyond_communication(uneven):
    assert figures.waiting_s(uneven) == pytest.approx({0: 0.005, 1: 0.0})


def test_compute_and_apply_are_means_over_a_ranks_steps(uneven):
    assert figures.compute_s(uneven) == pytest.approx({0: 0.010, 1: 0.015})
    assert figures.apply_s(uneven) == pytest.approx({0: 0.001, 1: 0.001})


def test_imbalance_is_the_mean_over_steps_of_slowest_over_mean(uneven):
    assert figures.slowest_over_mean(uneven) == pytest.approx((20 / 15 + 1) / 2)


def test_steps_that_warm_up_count_only_where_there_are_no_others(tmp_path):
    for rank, count in enumerate([3, 2]):
        write(tmp_path, rank, [header(rank, 2), *steps([(500, 400, 9), (100, 90, 9), *[(10, 2, 1)] * count])])
    trace = read_trace(tmp_path)
    assert figures.compute_s(trace) == pytest.approx({0: 0.010, 1: 0.155})
    assert figures.apply_s(trace) == pytest.approx({0: 0.001, 1: 0.005})
    assert [pair[0].number for pair in figures.aligned(trace)] == [3, 4]


def test_balanced_ranks_wait_for_nobody(tmp_path):
    trace = read_trace(made_traces.balanced(tmp_path, world=4))
    assert figures.communication_s(trace) == pytest.approx(0.002)
    assert figures.waiting_s(trace) == pytest.approx(dict.fromkeys(range(4), 0.0), abs=1e-12)
    assert figures.slowest_over_mean(trace) == pytest.approx(1.0)


def test_one_slow_step_of_communication_does_not_count(tmp_path):
    for rank in range(2):
        write(tmp_path, rank, [header(rank, 2), *steps([(10, 900, 1), *[(10, 2, 1)] * 4])])
    assert figures.communication_s(read_trace(tmp_path)) == pytest.approx(0.002)


def test_steps_are_compared_by_their_number_also_after_a_gap(tmp_path):
    write(tmp_path, 0, [header(0, 2), *steps([(10, 2, 1)] * 2), *steps([(30, 2, 1)], first=9)])
    write(tmp_path, 1, [header(1, 2), *steps([(10, 2, 1)], first=2), *steps([(60, 2, 1)], first=9)])
    numbers = [[step.number for step in pair] for pair in figures.aligned(read_trace(tmp_path))]
    assert numbers == [[2, 2], [9, 9]]


def test_ranks_without_a_common_step_have_no_common_figures(tmp_path):
    write(tmp_path, 0, [header(0, 2), *steps([(10, 2, 1)])])
    write(tmp_path, 1, [header(1, 2), *steps([(10, 2, 1)], first=7)])
    trace = read_trace(tmp_path)
    assert figures.communication_s(trace) == 0.0
    assert figures.slowest_over_mean(trace) == 1.0
    assert figures.waiting_s(trace) == pytest.approx({0: 0.002, 1: 0.002})


def test_steps_that_take_no_time_are_balanced(tmp_path):
    made = [header(0, 1), *steps([(0, 0, 0)])]
    write(tmp_path, 0, made)
    assert figures.slowest_over_mean(read_trace(tmp_path)) == 1.0


def test_the_share_of_late_steps_is_counted(tmp_path):
    assert figures.late_steps_share(read_trace(made_traces.eager(tmp_path))) == {0: 0.0, 1: 0.5}
