"""`outpace run` is interrupted, ended or killed: the exit code says so, and nothing is left."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support import interrupted
from tests.support.jobs import running, training
from tests.support.processes import exists, until

NOTING = """
import json, os, signal, sys, time
def note(what):
    directory, name = sys.argv[1], f"{os.environ['RANK']}.{os.environ['OUTPACE_LIFE']}.{what}"
    with open(f"{directory}/.{name}", "w") as file:
        json.dump({"pid": os.getpid()}, file)
    os.rename(f"{directory}/.{name}", f"{directory}/{name}")
"""
STUBBORN = NOTING + "signal.signal(signal.SIGINT, lambda *_: note('interrupted'))\n"
POLITE = NOTING + "signal.signal(signal.SIGTERM, lambda *_: (note('ended'), sys.exit(0)))\n"


def started(tmp_path, code, *options):
    """A job of two ranks that note that they have started, and sleep."""
    script = tmp_path / "script.py"
    script.write_text(f"{code}note('started')\nwhile True:\n    time.sleep(60)\n")
    return running(tmp_path, 2, [str(script), str(tmp_path)], *options)


def test_ctrl_c_ends_a_training_with_exit_code_130_and_no_noise(tmp_path):
    with training(tmp_path, 2, "count") as job:
        job.await_all("trained")
        job.kill(1, number=signal.SIGSTOP)  # it hears nothing until it is woken
        os.killpg(job.process.pid, signal.SIGINT)
        assert job.end(60) == 130
        assert "Traceback" not in job.errors


def test_ranks_that_do_not_end_in_time_are_killed(tmp_path):
    with started(tmp_path, STUBBORN, "--stop-within", "1") as job:
        job.await_all("started")
        job.process.send_signal(signal.SIGINT)
        assert job.end(30) == 130
        assert all((tmp_path / f"{rank}.1.interrupted").exists() for rank in range(2))


def test_a_second_ctrl_c_kills_at_once(tmp_path):
    with started(tmp_path, STUBBORN, "--stop-within", "1000") as job:
        job.await_all("started")
        job.process.send_signal(signal.SIGINT)
        job.await_all("interrupted")
        job.process.send_signal(signal.SIGINT)
        assert job.end(30) == 130


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_other_signals_are_passed_on_too(tmp_path, number, code):
    with started(tmp_path, POLITE.replace("SIGTERM", number.name), "--stop-within", "1000") as job:
        job.await_all("started")
        job.process.send_signal(number)
        assert job.end(30) == code
        assert all((tmp_path / f"{rank}.1.ended").exists() for rank in range(2))


def test_no_rank_outlives_a_killed_launcher(tmp_path):
    with started(tmp_path, STUBBORN) as job:
        job.await_all("started")
        job.kill(1, number=signal.SIGSTOP)
        job.process.kill()
        until(lambda: not any(exists(pid) for pid in job.pids()))


def test_a_launcher_interrupted_at_random_instants_leaves_nothing(tmp_path):
    command = [sys.executable, interrupted.__file__, "24", "0", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.stdout == "24 of 24 clean\n", done.stdout + done.stderr
