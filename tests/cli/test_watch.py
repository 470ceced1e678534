"""`outpace watch`, also as a process of its own beside ranks that train."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest
import torch

import outpace
from outpace.cli import main, watch
from outpace.cli.watch import line
from outpace.interface import Ticket
from outpace.observe.live import Follower
from outpace.observe.recorder import Recorder
from outpace.observe.schema import Header, loop_step, strategy_step
from outpace.race.directory import save
from outpace.race.result import Attempt, Entry, Race, Settings
from outpace.workloads.base import ACCURACY
from tests.support.processes import hear_ctrl_c

MS = 1_000_000
COMMAND = [sys.executable, "-m", "outpace", "watch"]


def trained(directory: str, strategy: str, steps: int) -> None:
    """What a rank of the watched job does."""
    weight = torch.nn.Parameter(torch.ones(3))
    inner = torch.optim.SGD([weight], lr=0.01)
    with outpace.DistributedOptimizer(inner, strategy, timeout_s=60, log_dir=directory) as optimizer:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = weight.square().sum()
            loss.backward()
            optimizer.step(samples=8, loss=loss)


def recorded(directory, world=2, steps=4, finished=True):
    """A run that has ended, of ranks that compute 10 ms more each."""
    for rank in range(world):
        recorder = Recorder(directory, Header.here(rank, world, "ddp", 4096))
        for number in range(1, steps + 1):
            begin = number * 100 * MS
            ready, end = begin + (rank + 1) * 10 * MS, begin + (world * 10 + 2) * MS
            recorder.add((loop_step, number, begin, ready, end, (end - ready) / 1e9 - 0.001, 0.001, 0.25))
        recorder.close()
        if not finished:
            recorder.path.write_text("".join(recorder.path.read_text().splitlines(keepends=True)[:-1]))
    return directory


def shown(capsys, *argv):
    assert main(["watch", *map(str, argv)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


# -- beside a job that runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["eager-majority", "allreduce"])
def test_a_job_is_watched_from_before_its_first_step_to_its_end(tmp_path, strategy):
    watching = subprocess.Popen([*COMMAND, str(tmp_path), "--every", "0.1"], stdout=subprocess.PIPE, text=True)
    with watching:
        assert watching.stdout.readline() == f"waiting for the first step in {tmp_path}\n"
        outpace.spawn(trained, 2, (str(tmp_path), strategy, 50))
        *_, last = watching.stdout.readlines()
    assert last.startswith("all 2 ranks have finished: 100 steps in ")
    assert ", loss " in last
    assert watching.returncode == 0


def test_on_a_terminal_the_picture_is_drawn_until_the_job_ends(tmp_path):
    recorded(tmp_path)
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    watching = subprocess.Popen([*COMMAND, str(tmp_path)], stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    screen = read_all(master)
    assert watching.wait() == 0
    for words in ("█", "compute ms", "ddp, 2 ranks", "all 2 ranks have finished: 8 steps"):
        assert words in screen


def test_an_interrupt_on_a_terminal_leaves_it_as_it_was(tmp_path):
    recorded(tmp_path, finished=False)
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    command = [*COMMAND, str(tmp_path)]
    watching = subprocess.Popen(command, stdout=slave, stderr=slave, env=environment, preexec_fn=hear_ctrl_c)
    os.close(slave)
    screen = ""
    while "compute ms" not in screen:
        screen += os.read(master, 65536).decode(errors="replace")
    watching.send_signal(signal.SIGINT)
    screen += read_all(master)
    assert watching.wait() == 130
    assert "Traceback" not in screen
    assert screen.rindex("\x1b[?25h") > screen.rindex("\x1b[?25l"), "the cursor is shown again"


def read_all(master):
    """All that comes until the other side is closed."""
    parts = []
    try:
        while part := os.read(master, 65536):
            parts.append(part)
    except OSError:  # how Linux says that nobody is there any more
        pass
    os.close(master)
    return b"".join(parts).decode()


def test_an_interrupt_ends_it_without_a_traceback(tmp_path):
    recorded(tmp_path, finished=False)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*COMMAND, str(tmp_path)], preexec_fn=hear_ctrl_c, **pipes) as watching:
        assert watching.stdout.readline().startswith("4 steps, ")
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate()
    assert (out, err, watching.returncode) == ("", "", 130)


# -- one look ----------------------------------------------------------------------------------------------------------


def test_once_shows_one_picture(capsys, tmp_path):
    out = shown(capsys, recorded(tmp_path, finished=False), "--once")
    head, late, names, *rows = out.splitlines()
    assert head.startswith("ddp, 2 ranks, 0 s: ")
    assert "loss 0.25" in head
    assert late.startswith("no rank has finished a step for ")
    assert names.split()[:6] == ["rank", "█", "compute", "░", "wait", "compute"]
    assert [row.split()[0] for row in rows] == ["0", "1"]
    assert "10.0" in rows[0]
    assert max(map(len, (names, *rows))) <= 80


def test_json_is_one_document_with_every_figure(capsys, tmp_path):
    document = json.loads(shown(capsys, recorded(tmp_path), "--json"))
    assert (document["strategy"], document["world"], document["has_ended"]) == ("ddp", 2, True)
    assert [rank["steps"] for rank in document["ranks"]] == [4, 4]
    assert [rank["compute_ms"] for rank in document["ranks"]] == pytest.approx([10, 20])
    assert [rank["late_ms"] for rank in document["ranks"]] == pytest.approx([0, 10])
    assert document["loss"] == 0.25


def test_an_empty_directory_is_waited_for(capsys, tmp_path):
    assert shown(capsys, tmp_path, "--once") == f"waiting for the first step in {tmp_path}\n"
    assert json.loads(shown(capsys, tmp_path, "--json"))["ranks"] == []


@pytest.mark.parametrize(("name", "why"), [("nowhere", "it does not exist"), ("file", "it is a file")])
def test_what_can_be_no_run_is_answered_in_one_line(capsys, tmp_path, name, why):
    (tmp_path / "file").write_text("")
    assert main(["watch", str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("outpace watch: there is no run at ")
    assert why in captured.err
    assert len(captured.err.splitlines()) == 1


def test_names_from_files_are_no_orders_to_the_terminal(capsys, tmp_path):
    file = recorded(tmp_path, world=1) / "rank-00000.jsonl"
    file.write_text(file.read_text().replace('"strategy":"ddp"', '"strategy":"[red]\\u001b[2J"'))
    out = shown(capsys, tmp_path, "--once")
    assert r"[red]\x1b[2J" in out
    assert "\x1b" not in out


# -- the directory of a race -------------------------------------------------------------------------------------------


def aged(directory, seconds):
    for file in directory.iterdir():
        os.utime(file, (seconds, seconds))


def test_a_race_is_followed_from_system_to_system(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "LOOK_EVERY_S", 0)
    save(race("ddp", "eager-solo"), tmp_path)
    aged(recorded(tmp_path / "01-ddp"), 1000)
    seen = watch.lives(tmp_path)
    first = next(seen)
    assert first.directory.endswith("01-ddp")
    assert first.has_ended
    aged(recorded(tmp_path / "02-eager-solo", finished=False), 2000)
    second = next(seen)
    assert second.directory.endswith("02-eager-solo")
    assert not second.has_ended


def race(*systems, attempts=()):
    entries = tuple(Entry(name, name, attempts) for name in systems)
    return Race(Settings(), "outpace race", ACCURACY, entries)


def test_a_race_is_over_when_all_its_systems_have_run(capsys, tmp_path):
    save(race("ddp", attempts=(Attempt(0, "01-ddp", error="it failed"),)), tmp_path)
    recorded(tmp_path / "01-ddp")
    assert shown(capsys, tmp_path).splitlines()[-1].startswith("all 2 ranks have finished: 8 steps")


def test_of_several_jobs_the_latest_is_followed_to_its_end(capsys, tmp_path):
    recorded(tmp_path / "monday")
    assert shown(capsys, tmp_path).splitlines()[-1].startswith("all 2 ranks have finished: 8 steps")


def test_trace_says_in_which_directories_of_a_race_the_traces_are(capsys, tmp_path):
    for name in ("01-ddp", "02-eager-solo"):
        recorded(tmp_path / name)
    assert main(["trace", str(tmp_path), "-o", str(tmp_path / "timeline.json")]) == 2
    assert "there is no trace in" in (complaint := capsys.readouterr().err)
    assert "itself, but in: 01-ddp, 02-eager-solo. Give one of these" in complaint
    assert main(["trace", str(tmp_path / "01-ddp"), "-o", str(tmp_path / "timeline.json")]) == 0
    assert len(json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]) > 2 * 4 * 3


# -- words -------------------------------------------------------------------------------------------------------------


def test_a_line_says_what_a_log_needs(tmp_path):
    live = Follower(recorded(tmp_path, finished=False)).poll(502 * MS)
    assert line(live) == (
        "4 steps, 12.4 steps/s a rank, loss 0.25, rank 1 is late: its gradients were ready 10 ms after the first rank's"
    )


def test_a_job_that_was_interrupted_is_not_said_to_have_finished(capsys, tmp_path):
    for rank in range(2):
        recorder = Recorder(tmp_path, Header.here(rank, 2, "eager-solo", 4096))
        ticket = Ticket(1, 0, True, "on time")
        recorder.add((strategy_step, ticket, 100 * MS, 110 * MS, 120 * MS, 0.001, 0, 1.0))
        recorder.close()
    assert "all ranks were stopped before finish(), by Ctrl-C or an error: 2 steps" in shown(capsys, tmp_path)
