"""One recorder and its disk: full, slow, gone or never usable."""

import gc
import json
import logging
import os
import shutil
import threading

import pytest
from msgspec.structs import replace

from outpace.errors import OutpaceError
from outpace.observe import recorder as recorders
from outpace.observe.reader import read_trace
from outpace.observe.recorder import Recorder
from outpace.observe.schema import Header, loop_step

HEADER = Header.here(rank=3, world=4, strategy="ddp", payload_bytes=12)
NAME = "rank-00003.jsonl"


def a_step(number):
    return (loop_step, number, 10 * number, 10 * number + 5, 10 * number + 10, 2e-9, 3e-9)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def writers():
    return [thread for thread in threading.enumerate() if thread.name == "trace of rank 3"]


@pytest.fixture(autouse=True)
def nothing_left_behind():
    yield
    gc.collect()
    assert writers() == []


def test_lines_stand_in_order_between_a_header_and_an_end(tmp_path):
    with Recorder(tmp_path / "new" / "run", HEADER) as recorder:
        for number in range(200):
            recorder.add(a_step(number))
    first, *steps, last = lines(recorder.path)
    assert recorder.path == tmp_path / "new" / "run" / NAME
    assert (first["trace"], first["rank"], first["world"], first["incarnation"]) == (1, 3, 4, 1)
    assert [line["step"] for line in steps] == list(range(200))
    assert set(last) == {"finished"}


def test_nothing_is_written_after_the_end(tmp_path):
    with Recorder(tmp_path, HEADER) as recorder:
        pass
    before = recorder.path.read_bytes()
    recorder.add(a_step(1))
    recorder.close()
    assert recorder.path.read_bytes() == before


def test_a_new_run_begins_its_file_anew_and_a_restarted_rank_appends(tmp_path):
    for incarnation, steps in ((1, [1, 2]), (2, [3])):
        with Recorder(tmp_path, replace(HEADER, incarnation=incarnation)) as recorder:
            for number in steps:
                recorder.add(a_step(number))
    assert [step.number for step in read_trace(tmp_path).ranks[3].steps] == [1, 2, 3]
    with Recorder(tmp_path, HEADER) as recorder:
        recorder.add(a_step(7))
    assert [step.number for step in read_trace(tmp_path).ranks[3].steps] == [7]


@pytest.mark.parametrize("earlier", [0, 3000])
def test_a_file_never_grows_beyond_its_limit(tmp_path, caplog, earlier):
    (tmp_path / NAME).write_bytes(b"\n" * earlier)
    with Recorder(tmp_path, replace(HEADER, incarnation=2), limit_bytes=5000) as recorder:
        for number in range(1000):
            recorder.add(a_step(number))
    assert 4000 < recorder.path.stat().st_size <= 5000
    *steps, last = lines(recorder.path)[1:]
    assert [line["step"] for line in steps] == list(range(len(steps)))
    assert last == {"cut": "limit of 5000 bytes reached"}
    assert len(caplog.messages) == 1
    assert not recorder.is_open


def warned(caplog, path, reason):
    """Whether there was one warning, and it names rank, file and reason."""
    (found,) = caplog.records
    assert found.levelno == logging.WARNING
    assert found.getMessage() == f"[rank 3] recording to {path} ended: {reason}. Training goes on without"


def test_a_full_disk_ends_recording_with_one_warning(tmp_path, caplog):
    (tmp_path / NAME).symlink_to("/dev/full")
    with Recorder(tmp_path, HEADER) as recorder:
        for number in range(1000):
            recorder.add(a_step(number))
    warned(caplog, recorder.path, "No space left on device")


def test_what_a_full_disk_has_taken_can_be_read(tiny_disk, caplog):
    with Recorder(tiny_disk, HEADER) as recorder:
        for number in range(5000):
            recorder.add(a_step(number))
    warned(caplog, recorder.path, "No space left on device")
    found = [step.number for step in read_trace(tiny_disk).ranks[3].steps]
    assert len(found) > 50
    assert found == list(range(len(found)))


def test_a_directory_that_vanishes_ends_recording_with_one_warning(tmp_path, caplog):
    with Recorder(tmp_path / "run", HEADER) as recorder:
        recorder.add(a_step(1))
        shutil.rmtree(tmp_path / "run")
    warned(caplog, recorder.path, "the file was removed")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def pipe(tmp_path):
    """A file that takes 64 KB and then nothing more, as long as nobody reads."""
    os.mkfifo(tmp_path / NAME)
    descriptor = os.open(tmp_path / NAME, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def test_a_disk_that_takes_nothing_holds_up_nobody(tmp_path, pipe, caplog, monkeypatch):
    monkeypatch.setattr(recorders, "CLOSE_S", 0.01)
    recorder = Recorder(tmp_path, HEADER)
    (writer,) = writers()
    for number in range(20_000):  # more than the pipe and the queue take
        recorder.add(a_step(number))
    recorder.close()
    assert caplog.messages == [
        f"[rank 3] recording to {recorder.path} was given up: the disk has taken nothing for 0 s"
    ]
    assert writer.is_alive()
    os.read(pipe, 1_000_000)  # the disk is back: the thread ends, and writes no more
    writer.join()
    assert len(caplog.messages) == 1


def test_what_a_slow_disk_leaves_no_room_for_is_counted(tmp_path, pipe, monkeypatch):
    monkeypatch.setattr(recorders, "CLOSE_S", 60.0)
    recorder = Recorder(tmp_path, HEADER)
    for number in range(20_000):
        recorder.add(a_step(number))
    found = []
    reader = threading.Thread(target=lambda: found.extend(until_finished(pipe)))
    reader.start()
    recorder.close()
    reader.join()
    written = [line["step"] for line in found if "step" in line]
    lost = sum(line["lost"] for line in found if "lost" in line)
    assert lost > 0
    assert len(written) + lost == 20_000
    assert written == sorted(set(written))
    assert "finished" in found[-1]


def until_finished(pipe):
    data = b""
    while b'"finished"' not in data:
        data += os.read(pipe, 1_000_000)
    return [json.loads(line) for line in data.splitlines()]


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("file", "File exists"),
        ("file/below", "Not a directory"),
        ("taken", "Is a directory"),
        ("pipe", "No such device or address"),
        ("/proc/nowhere", "No such file or directory"),
    ],
)
def test_an_unusable_place_is_an_error_that_names_it(tmp_path, place, reason):
    (tmp_path / "file").touch()
    (tmp_path / "taken" / NAME).mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / NAME)
    path = tmp_path / place
    with pytest.raises(OutpaceError, match=f"cannot record to {path}/{NAME}: {reason}. Nothing was started; give a"):
        Recorder(path, HEADER)


def test_two_recordings_do_not_share_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (
        Recorder(tmp_path, HEADER),
        pytest.raises(OutpaceError, match=r"this process already records to .* a log_dir of its own"),
    ):
        Recorder("", HEADER)
    Recorder(tmp_path, HEADER).close()


def test_a_recorder_that_is_forgotten_writes_what_it_has_and_makes_room_for_another(tmp_path):
    for number in range(5):
        recorder = Recorder(tmp_path, replace(HEADER, incarnation=1 + number))
        recorder.add(a_step(number))
        del recorder
        gc.collect()
    recorders.close_all()
    assert [line["step"] for line in lines(tmp_path / NAME) if "step" in line] == list(range(5))
    assert "finished" in lines(tmp_path / NAME)[-1]
