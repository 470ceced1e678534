import json

import pytest

from outpace.cli import main
from outpace.observe.recorder import Recorder
from outpace.observe.schema import Header, loop_step

MS = 1_000_000


def recorded(directory, compute_ms=(10, 30), steps=4):
    """A run in which each rank computes so long, and waits for the slowest."""
    for rank, mine in enumerate(compute_ms):
        with Recorder(directory, Header.here(rank, len(compute_ms), "ddp", 4096)) as recorder:
            for number in range(1, steps + 1):
                begin = number * 100 * MS
                ready, end = begin + mine * MS, begin + (max(compute_ms) + 2) * MS
                recorder.add((loop_step, number, begin, ready, end, (end - ready) / 1e9 - 0.001, 0.001))
    return str(directory)


@pytest.fixture
def run(tmp_path):
    return recorded(tmp_path / "run")


def shown(capsys, *argv):
    """What a command line that works prints."""
    assert main(["trace", *map(str, argv)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_the_summary_shows_every_rank_and_the_slowest(capsys, monkeypatch, run):
    monkeypatch.setenv("COLUMNS", "100")
    out = shown(capsys, run)
    for text in (
        "2 ranks, strategy ddp",
        "10.0 ms",
        "30.0 ms",
        "20.0 ms",
        "slowest        rank 1: computes 30.0 ms a step",
    ):
        assert text in out
    assert "in a step, the slowest rank computes 1.50 times the mean" in out
    assert "left out" not in out
    assert "perfetto" not in out


def test_json_is_one_document_with_every_figure(capsys, run):
    document = json.loads(shown(capsys, run, "--json"))
    assert (document["world"], document["strategy"], document["payload_bytes"]) == (2, "ddp", 4096)
    assert document["slowest_rank"] == 1
    assert document["slowest_over_mean"] == pytest.approx(1.5)
    assert document["communication_s"] == pytest.approx(0.001)
    first, second = document["ranks"]
    assert (first["rank"], first["steps"]) == (0, 4)
    assert (first["compute_s"], first["waiting_s"], first["apply_s"]) == pytest.approx((0.010, 0.020, 0.001))
    assert (second["compute_s"], second["waiting_s"]) == pytest.approx((0.030, 0.0))
    assert document["skipped"] == []
    assert document["export"] is None


@pytest.mark.parametrize("option", ["-o", "--perfetto"])
def test_the_timeline_is_written_and_said_where_to_open(capsys, run, tmp_path, option):
    target = tmp_path / "timeline.json"
    out = shown(capsys, run, option, target)
    assert f"{target}: open it at https://ui.perfetto.dev or chrome://tracing" in out
    events = json.loads(target.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 2 * 4 * 3


def test_what_was_left_out_is_said(capsys, run, tmp_path):
    file = tmp_path / "run" / "rank-00001.jsonl"
    file.write_text(file.read_text() + "garbage\n")
    words = "rank-00001.jsonl: line 7 is not JSON (cut in the middle?), skipped"
    assert f"left out       {words}" in shown(capsys, run)
    assert json.loads(shown(capsys, run, "--json"))["skipped"] == [words]


def test_names_from_files_are_no_orders_to_the_terminal(capsys, run, tmp_path):
    file = tmp_path / "run" / "rank-00000.jsonl"
    file.write_text(file.read_text().replace('"strategy":"ddp"', '"strategy":"[red]\\u001b[2J"'))
    (tmp_path / "run" / "rank-00001.jsonl").unlink()
    out = shown(capsys, run)
    assert r"[red]\x1b[2J" in out
    assert "\x1b" not in out


def complaint(capsys, *argv):
    code = main(["trace", *map(str, argv)])
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("outpace trace: ")
    return code, line


def test_what_is_no_trace_is_answered_in_one_line(capsys, tmp_path):
    code, line = complaint(capsys, tmp_path / "nowhere")
    assert code == 2
    assert "there is no trace at" in line
    (tmp_path / "rank-00000.jsonl").write_bytes(b"\x89PNG\r\n\x1a\n\x1b[2J")
    code, line = complaint(capsys, tmp_path)
    assert code == 2
    assert line.isprintable()


def test_an_export_that_cannot_be_written_is_answered_in_one_line(capsys, run):
    code, line = complaint(capsys, run, "-o", "/dev/full")
    assert code == 1
    assert "No space left on device" in line


@pytest.mark.parametrize("given", ["run", "run/rank-00001.jsonl"])
def test_the_export_does_not_overwrite_the_recording(capsys, run, tmp_path, given):
    file = tmp_path / "run" / "rank-00001.jsonl"
    before = file.read_bytes()
    code, line = complaint(capsys, tmp_path / given, "-o", file)
    assert code == 2
    assert "is the recording itself" in line
    assert file.read_bytes() == before


def test_help_says_how_a_run_is_recorded(capsys):
    with pytest.raises(SystemExit) as end:
        main(["trace", "--help"])
    assert end.value.code == 0
    assert "outpace.record(optimizer" in capsys.readouterr().out
