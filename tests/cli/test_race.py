"""`outpace race` from the outside: real processes, and what they leave behind."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from outpace.cli import main
from tests.support.processes import hear_ctrl_c
from tests.support.warm import Warm

SYSTEMS = ["ddp", "torch-post-local-sgd:warmup=2", "allreduce", "eager-majority", "wagma", "nonblocking"]
SMALL = ["--ranks", "2", "--imbalance", "random:k=1,delay_ms=10", "--rounds", "6", "--compute-ms", "5"]


def start(*options):
    """The race in a session of its own, as a shell starts it."""
    command = [sys.executable, "-m", "outpace", "race", *map(str, options)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, start_new_session=True, preexec_fn=hear_ctrl_c, **pipes)


def living(group):
    """Processes of this process group that have not ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, number = entry.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it ended while we looked
        if int(number) == group and state not in "ZX":
            found.append(entry.parent.name)
    return found


def wait_until_gone(group):
    """Waits for helpers of multiprocessing, which end when they notice that their parent has."""
    deadline = time.monotonic() + 20
    while living(group):
        assert time.monotonic() < deadline, f"still there: {living(group)}"
        time.sleep(0.02)


def raced(code, *options, said):
    """The document of a race that ended with this code. What it writes goes to files in the directory `said`."""
    race = Warm(["race", "--json", *map(str, options)], said)
    assert race.wait(150) == code, (said / "stderr").read_text()
    wait_until_gone(race.pid)
    return json.loads((said / "stdout").read_text())


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("small") / "race"


@pytest.fixture(scope="module")
def small(run_dir):
    options = (*SMALL, "--strategies", ",".join(SYSTEMS), "--seed", 3, "--run-dir", run_dir)
    return raced(0, *options, said=run_dir.parent)


def test_json_is_one_document_with_every_system(small, run_dir):
    assert [s["system"] for s in small["systems"]] == SYSTEMS
    assert small["interrupted"] is False
    assert small["command"] == f"outpace race {' '.join(SMALL)} --seed 3 --strategies {','.join(SYSTEMS)}"
    assert small["run_dir"] == str(run_dir)


def test_every_system_computes_the_same_work(small):
    rates = {s["system"]: s["seconds"] * s["samples_per_s"] for s in small["systems"]}
    assert set(map(round, rates.values())) == {6 * 2048}


def test_systems_that_wait_for_everybody_compute_the_same(small):
    by_name = {s["system"]: s for s in small["systems"]}
    ddp, allreduce = by_name["ddp"], by_name["allreduce"]
    assert allreduce["final_loss"] == pytest.approx(ddp["final_loss"], rel=1e-4)
    assert ddp["late_share"] == allreduce["late_share"] == 0
    assert ddp["speedup"] == 1
    assert ddp["slowest_share"] == 0.5


def test_every_system_learns(small, run_dir):
    race = json.loads((run_dir / "race.json").read_text())
    for entry in race["entries"]:
        (attempt,) = entry["attempts"]
        assert attempt["curve"][-1][2] < 0.8 * attempt["curve"][0][2]
        assert attempt["losses"]


def test_the_run_directory_has_a_report_and_a_recording_of_every_system(small, run_dir):
    assert (run_dir / "report.html").stat().st_size > 1_000_000
    assert small["report"] == str(run_dir / "report.html")
    for number, name in enumerate(SYSTEMS, 1):
        (directory,) = run_dir.glob(f"{number:02d}-{name.partition(':')[0]}*")
        assert len(list(directory.glob("rank-*.jsonl"))) == 2


def test_a_report_can_be_made_again(small, run_dir, capsys):
    (run_dir / "report.html").unlink()
    assert main(["report", str(run_dir)]) == 0
    assert capsys.readouterr().out == f"{run_dir / 'report.html'}\n"
    assert (run_dir / "report.html").stat().st_size > 1_000_000


def test_systems_can_have_the_same_time_instead_and_be_repeated(tmp_path):
    options = ["--workload", "digits", "--seconds", 0.7, "--compute-ms", 5, "--ranks", 2, "--repeat", 2]
    options += ["--imbalance", "slow:k=1,factor=3", "--strategies", "ddp,eager-solo", "--run-dir", tmp_path / "race"]
    ddp, solo = raced(0, *options, said=tmp_path)["systems"]
    assert ddp["attempts"] == solo["attempts"] == 2
    race = json.loads((tmp_path / "race" / "race.json").read_text())
    in_step, on_their_own = ([rank["steps"] for rank in e["attempts"][1]["ranks"]] for e in race["entries"])
    assert in_step[0] == in_step[1] > 1
    assert on_their_own[1] > 0
    assert [attempt["seed"] for attempt in race["entries"][0]["attempts"]] == [0, 1]


def test_ctrl_c_reports_what_ran_and_leaves_no_process(tmp_path):
    race = start(*SMALL[:4], "--seconds", 600, "--strategies", "eager-solo", "--json", "--run-dir", tmp_path / "race")
    wait_for_steps(race, tmp_path / "race" / "01-eager-solo")
    os.killpg(race.pid, signal.SIGINT)
    out, err = race.communicate(timeout=60)
    assert race.returncode == 130
    assert "Traceback" not in err
    document = json.loads(out)
    assert document["interrupted"] is True
    assert document["systems"] == []
    assert (tmp_path / "race" / "report.html").is_file()
    wait_until_gone(race.pid)


def test_on_a_terminal_the_ranks_are_seen_while_they_run(tmp_path):
    ours, theirs = pty.openpty()
    options = [*SMALL[:4], "--seconds", 2, "--compute-ms", 20, "--strategies", "ddp,eager-solo"]
    command = [sys.executable, "-m", "outpace", "race", *map(str, options), "--run-dir", str(tmp_path / "race")]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    race = subprocess.Popen(command, stdout=theirs, stderr=theirs, start_new_session=True, env=environment)
    os.close(theirs)
    shown = read_to_its_end(ours)
    assert race.wait(timeout=60) == 0
    assert "eager-solo (2 of 2 systems, 2 s)" in shown
    assert "computing" in shown
    assert "samples/s" in shown
    assert "report.html" in shown
    assert "Traceback" not in shown
    wait_until_gone(race.pid)


def read_to_its_end(terminal):
    """What is written to a terminal until nobody holds it any more."""
    shown = b""
    with suppress(OSError):  # how Linux tells that the other end is closed
        while data := os.read(terminal, 65536):
            shown += data
    os.close(terminal)
    return shown.decode(errors="replace")


def wait_for_steps(race, directory):
    """Until a rank has recorded a step."""
    deadline = time.monotonic() + 60
    while not any('"step"' in file.read_text() for file in directory.glob("rank-*.jsonl")):
        assert race.poll() is None, race.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


SCRIPT = """
import sys
import torch
import outpace

model = torch.nn.Linear(4, 1)
with outpace.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), "eager-solo", model) as optimizer:
    if "{fails}" in repr(optimizer):
        print("half a line", end="")
        raise ValueError("a bad day")
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step(loss=loss)
print("done")
"""


def test_a_script_runs_once_for_each_strategy_and_a_failure_is_a_row(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(fails="majority"))
    options = ["--script", script, "--ranks", 2, "--run-dir", tmp_path / "race"]
    strategies = "allreduce,eager-majority,eager-solo:grace=0"
    document = raced(0, *options, "--strategies", strategies, "--", 7, said=tmp_path)
    allreduce, majority, solo = document["systems"]
    assert document["metric"] == "training loss"
    assert document["command"].endswith(f"--strategies {strategies} -- 7")
    assert allreduce["error"] is None
    assert allreduce["samples_per_s"] * allreduce["seconds"] == pytest.approx(14)
    assert solo["final_loss"] < 1
    assert "ValueError: a bad day" in majority["error"]
    assert "output-0000" in majority["error"]
    assert "and ends with: half a line" in majority["error"]
    assert "Traceback" in next((tmp_path / "race").glob("02-*/failure.txt")).read_text()
    assert next((tmp_path / "race").glob("01-*/output-00001.txt")).read_text() == "done\n"


def test_a_race_that_nobody_finished_says_so(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('no optimizer here')")
    options = ["--script", script, "--ranks", 2, "--strategies", "eager-solo", "--run-dir", tmp_path / "race"]
    document = raced(1, *options, said=tmp_path)
    assert "recorded no step" in document["systems"][0]["error"]
    assert "Nobody won" in document["verdict"]
