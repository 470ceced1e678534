import pytest

from outpace.errors import InvalidRules, TraceInvalid
from outpace.imbalance import imbalance
from outpace.imbalance.models import Recorded, RecordedTimes
from outpace.observe.reader import read_trace
from tests.support import made_traces
from tests.support.made_traces import header, steps, write


def lengths(model, rank, count, world=2):
    return [round(model.compute_s(rank, world, step, base_s=9.9) * 1000) for step in range(count)]


@pytest.fixture
def recorded(tmp_path):
    write(tmp_path, 0, [header(0, 2), *steps([(900, 1, 1), (80, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1)])])
    write(tmp_path, 1, [header(1, 2), *steps([(10, 1, 1), (20, 1, 1)])])
    return Recorded(path=str(tmp_path))


def test_steps_are_as_recorded_and_begin_again_when_they_run_out(recorded):
    assert lengths(recorded, 1, 5) == [10, 20, 10, 20, 10]


def test_steps_that_warm_up_are_left_out_where_there_are_enough(recorded):
    assert lengths(recorded, 0, 5) == [2, 3, 4, 2, 3]


def test_ranks_beyond_the_recorded_world_do_as_the_recorded_ones_some_steps_ahead(recorded):
    for rank in range(2, 8):
        steps = lengths(recorded, rank, 12, world=8)
        assert sorted(set(steps)) == sorted(set(lengths(recorded, rank % 2, 12)))
    assert lengths(recorded, 2, 9, world=8) != lengths(recorded, 0, 9)


def test_missing_ranks_are_stood_in_for(tmp_path):
    write(tmp_path, 3, [header(3, 4), *steps([(7, 1, 1)])])
    model = Recorded(path=str(tmp_path))
    assert [lengths(model, rank, 1, world=4) for rank in range(4)] == [[7]] * 4


def test_a_rank_is_itself_where_another_one_is_missing(tmp_path):
    for rank in (0, 2):
        write(tmp_path, rank, [header(rank, 3), *steps([(rank + 1, 1, 1)])])
    assert lengths(Recorded(path=str(tmp_path)), 2, 1, world=3) == [3]


def test_a_trace_in_memory_can_be_replayed_too(recorded, tmp_path):
    replay = RecordedTimes.of(read_trace(tmp_path))
    for rank in range(3):
        assert lengths(replay, rank, 9) == lengths(recorded, rank, 9)


def test_the_files_are_read_once(recorded, tmp_path):
    for file in tmp_path.iterdir():
        file.unlink()
    assert lengths(recorded, 1, 2) == [10, 20]


def test_equal_paths_are_equal_models(recorded, tmp_path):
    assert recorded == Recorded(path=str(tmp_path))
    assert repr(recorded) == f"Recorded(path={str(tmp_path)!r})"


def test_it_is_to_be_had_by_its_name(recorded, tmp_path):
    assert imbalance(f"trace:path={tmp_path}") == recorded


def test_what_is_no_recording_is_refused(tmp_path):
    with pytest.raises(TraceInvalid, match="there is no trace in"):
        Recorded(path=str(tmp_path))
    with pytest.raises(InvalidRules, match="needs the directory of a recording, as in trace:path=runs/x"):
        Recorded()


def test_a_directory_named_like_a_number_is_a_directory(tmp_path, monkeypatch):
    made_traces.balanced(tmp_path / "2024")
    monkeypatch.chdir(tmp_path)
    assert lengths(Recorded(path=2024), 0, 1) == [10]
