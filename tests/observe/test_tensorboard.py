"""TensorBoard: what rank 0 shows is what it recorded, and nothing there is ever felt in training or in the trace."""

import itertools
import json
import logging
import os
import sys
import threading

import pytest
import torch
from msgspec.structs import replace

import outpace
from outpace.observe import tensorboard
from outpace.observe.reader import read_trace
from outpace.observe.recorder import Recorder, file_of
from outpace.observe.schema import Header, loop_step, strategy_step, traced_round
from outpace.protocol.round import Contribution, Round
from outpace.simulation.training import simulate
from tests.support import recording_ranks

MS = 1_000_000
HEADER = Header.here(0, 2, "eager-solo", 4096)


@pytest.fixture(autouse=True)
def looked_up_again():
    """Whether it is installed is found out once in a process."""
    tensorboard.is_installed.cache_clear()
    yield
    tensorboard.is_installed.cache_clear()


def shown(directory):
    """All scalars in a directory: name -> [(step, value), ...]."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in tags}


def step(number, begin_ms=None, loss=None):
    """A step of 200 ms: 150 computing, 40 waiting."""
    begin = (number * 200 if begin_ms is None else begin_ms) * MS
    return (loop_step, number, begin, begin + 150 * MS, begin + 200 * MS, 0.04, 0.01, loss)


def steps_of(weight, optimizer, count):
    for _ in range(count):
        recording_ranks.step(weight, optimizer)


def test_a_run_is_shown_with_every_scalar(tmp_path):
    outpace.spawn(recording_ranks.with_losses, 2, (str(tmp_path), 12))
    scalars, trace = shown(tmp_path), read_trace(tmp_path)
    recorded = {step.number: step for step in trace.ranks[0].steps}
    assert dict(scalars["loss"]) == {number: pytest.approx(recorded[number].loss) for number, _ in scalars["loss"]}
    for number, value in scalars["step/compute_ms"]:
        assert value == pytest.approx(recorded[number].compute_s * 1000, rel=1e-4)
    assert scalars["step/compute_ms"][-1][0] == 12, "the last step is always shown"
    assert {"step/waited_ms", "step/late_by_rounds", "samples_per_s", "staleness"} < set(scalars)
    assert all(value == 2 for _, value in scalars["rounds/contributions"])
    assert scalars["share/rank_00"][-1][1] == scalars["share/rank_01"][-1][1] == 0.5
    assert [step.loss for step in trace.ranks[1].steps] == [1 / number for number in range(1, 13)]


def test_only_rank_0_writes_and_simulated_ranks_do_not(tmp_path):
    assert tensorboard.open_board(tmp_path, Header.here(1, 2, "ddp", 0)) is None
    simulate(lambda: recording_ranks.with_losses(str(tmp_path / "simulated"), 2), ranks=2)
    assert list(tmp_path.iterdir()) == []


def test_record_shows_the_loss_that_it_is_told(tmp_path):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with outpace.record(optimizer, tmp_path) as recording:
        for loss in (torch.tensor(2.5, requires_grad=True), float("nan"), None):
            if loss is not None:
                recording.loss(loss)
            recording_ranks.step(weight, optimizer)
        with pytest.raises(outpace.OutpaceError, match="one number"):
            recording.loss(torch.ones(2))
    recording.loss(torch.ones(2))  # nothing records, so nothing is looked at
    assert [step.loss for step in read_trace(tmp_path).ranks[0].steps] == [2.5, None, None]
    assert shown(tmp_path)["loss"] == [(1, 2.5)]


def test_a_pause_is_not_computing(tmp_path):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with outpace.record(optimizer, tmp_path) as recording:
        recording_ranks.step(weight, optimizer)
        with recording.pause():
            pass
        recording_ranks.step(weight, optimizer)
    rank = read_trace(tmp_path).ranks[0]
    (pause,) = rank.pauses
    first, second = rank.steps
    assert first.end_ns <= pause.begin_ns <= pause.end_ns == second.begin_ns


def test_points_are_thinned_and_sums_are_not(tmp_path):
    board = tensorboard.Board(tmp_path, HEADER)
    for number in range(1, 1001):  # 1 ms each: a second
        times = (number * MS, number * MS + 1, (number + 1) * MS, 0.0)
        board.add((strategy_step, outpace.interface.Ticket(number, number, True, ""), *times, number, 8.0))
        given = tuple(Contribution(rank, 1, number, number - rank, 8.0, 0, False) for rank in range(number % 2 + 1))
        board.add((traced_round, Round(number, given, 2, None), (number + 1) * MS))
        board.flush()
    board.close()
    scalars = shown(tmp_path)
    assert 10 <= len(scalars["step/compute_ms"]) <= 12
    assert scalars["samples_per_s"][5][1] == pytest.approx(8000)
    assert scalars["rounds/contributions"][5][1] == pytest.approx(1.5, rel=0.01)
    assert scalars["staleness"][5][1] == pytest.approx(1 / 3, rel=0.02)
    assert scalars["share/rank_00"][-1][1] == pytest.approx(2 / 3, rel=0.01)


def test_a_week_makes_a_file_of_some_megabytes(tmp_path):
    board = tensorboard.Board(tmp_path, HEADER)
    for number in range(1, 7 * 24 * 3600, 20):
        board.add(step(number, begin_ms=number * 1000))
        board.flush()
    board.close()
    numbers = [number for number, _ in shown(tmp_path)["step/compute_ms"]]
    assert max(later - number for number, later in itertools.pairwise(numbers)) <= 100
    assert len(numbers) < 20_000


def test_points_have_the_time_of_day(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with outpace.record(optimizer, tmp_path):
        steps_of(weight, optimizer, 1)
    accumulator = EventAccumulator(str(tmp_path)).Reload()
    (event,) = accumulator.Scalars("step/compute_ms")
    (step,) = read_trace(tmp_path).ranks[0].steps
    assert event.wall_time == pytest.approx(os.path.getmtime(file_of(tmp_path, 0)), abs=30)
    assert step.number == event.step


def without_tensorboard(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as Python notes what cannot be imported


def test_without_tensorboard_only_the_trace_is_written_and_that_is_said_once(tmp_path, monkeypatch, caplog):
    without_tensorboard(monkeypatch)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with caplog.at_level(logging.INFO, "outpace"):
        for run in ("a", "b"):
            with outpace.record(optimizer, tmp_path / run):
                steps_of(weight, optimizer, 3)
    assert [file.name for file in sorted(tmp_path.glob("*/*"))] == ["rank-00000.jsonl"] * 2
    assert len(read_trace(tmp_path / "b").ranks[0].steps) == 3
    (message,) = [record.getMessage() for record in caplog.records]
    assert "pip install outpace[tensorboard]" in message


@pytest.mark.parametrize("broken", ["_take", "_write"])
def test_whatever_fails_there_the_trace_goes_on(tmp_path, monkeypatch, caplog, broken):
    board = tensorboard.Board(tmp_path, HEADER)
    monkeypatch.setattr(board, broken, lambda _: 1 / 0)
    with Recorder(tmp_path, HEADER, board=board) as recorder:
        for number in range(1, 4):
            recorder.add_and_show(step(number))
    assert len(read_trace(tmp_path).ranks[0].steps) == 3
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "for TensorBoard ended: division by zero. Training and its trace go on without" in warning


def test_a_full_disk_there_ends_only_that(tmp_path, caplog):
    board = tensorboard.Board(tmp_path, HEADER)
    board._file.close()
    board._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with Recorder(tmp_path, HEADER, board=board) as recorder:
        recorder.add_and_show(step(1))
    assert len(read_trace(tmp_path).ranks[0].steps) == 1
    assert "No space left" in caplog.text
    assert board.ended


def test_a_place_that_cannot_be_written_is_no_error(tmp_path, caplog):
    assert tensorboard.open_board(tmp_path / "nowhere", HEADER) is None
    assert "for TensorBoard ended: " in caplog.text


def test_its_file_is_bounded_and_stays_readable(tmp_path, caplog):
    board = tensorboard.Board(tmp_path, HEADER, limit_bytes=2000)
    for number in range(1, 100):
        board.add(step(number))
    board.close()
    assert board.path.stat().st_size <= 2000
    assert shown(tmp_path)["step/compute_ms"][:3] == [(1, 150), (2, 150), (3, 150)]
    assert len(caplog.records) == 1


def test_scalars_go_on_when_the_trace_has_reached_its_limit(tmp_path, monkeypatch):
    limit_reached = threading.Event()
    monkeypatch.setattr(logging.getLogger("outpace"), "warning", lambda *_: limit_reached.set())
    board = tensorboard.Board(tmp_path, HEADER)
    with Recorder(tmp_path, HEADER, limit_bytes=700, board=board) as recorder:
        for number in range(1, 20):
            recorder.add_and_show(step(number))
        assert limit_reached.wait(60)
        for number in range(20, 30):
            recorder.add_and_show(step(number))
    assert json.loads(file_of(tmp_path, 0).read_text().splitlines()[-1]).keys() == {"cut"}
    assert len(shown(tmp_path)["step/compute_ms"]) == 29


def test_a_new_run_begins_anew_and_a_restarted_rank_goes_on(tmp_path):
    (tmp_path / "events.out.tfevents.1.host.of-somebody-else").write_bytes(b"")
    for header, number in ((HEADER, 1), (HEADER, 2), (replace(HEADER, incarnation=2), 3)):
        board = tensorboard.Board(tmp_path, header)
        board.path = board.path.rename(tmp_path / f"events.out.tfevents.{number}.outpace")
        board.add(step(number))
        board.close()
    assert sorted(file.name.split(".")[3] for file in tmp_path.iterdir()) == ["1", "2", "3"]
    assert [number for number, _ in shown(tmp_path)["step/compute_ms"]] == [2, 3]
