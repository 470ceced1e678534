import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SYSTEMS = ["ddp", "allreduce", "eager-majority", "eager-solo"]
SMALL = ["--ranks", "2", "--steps", "5", "--compute-ms", "5", "--imbalance", "random:k=1,delay_ms=10"]


def start(*options):
    """The demo in a session of its own, as a shell starts it."""
    command = [sys.executable, "-m", "outpace", "demo", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, start_new_session=True, preexec_fn=hear_ctrl_c, **pipes)


def hear_ctrl_c():
    """A shell has its background jobs ignore SIGINT, and with them everything they start: these tests among it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture(scope="module")
def small():
    demo = start(*SMALL, "--json", "--seed", "3")
    out, err = demo.communicate(timeout=120)
    assert demo.returncode == 0, err
    wait_until_gone(demo.pid)
    return json.loads(out)


def test_json_is_one_document_with_every_system(small):
    assert [s["system"] for s in small["systems"]] == SYSTEMS
    assert small["settings"]["ranks"] == 2
    assert small["interrupted"] is False
    assert small["command"] == f"outpace demo {' '.join(SMALL)} --seed 3"


def test_every_system_learns(small):
    for system in small["systems"]:
        assert small["noise_floor"] < system["final_loss"] < 0.7 * small["untrained_loss"]


def test_all_ranks_end_with_one_model(small):
    for system in small["systems"]:
        assert [rank["rank"] for rank in system["ranks"]] == [0, 1]
        assert len({rank["final_loss"] for rank in system["ranks"]}) == 1


def test_systems_that_wait_for_everybody_compute_the_same(small):
    ddp, allreduce = small["systems"][:2]
    assert allreduce["final_loss"] == pytest.approx(ddp["final_loss"], rel=1e-4)
    assert ddp["late_share"] == allreduce["late_share"] == 0
    assert ddp["speedup_over_ddp"] == 1


def test_ctrl_c_reports_what_ran_and_leaves_no_process():
    demo = start("--ranks", "2", "--steps", "100000", "--strategies", "eager-solo", "--json")
    for line in demo.stderr:
        if "training" in line:
            break
    os.killpg(demo.pid, signal.SIGINT)
    out, err = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert err == ""
    document = json.loads(out)
    assert document["interrupted"] is True
    assert document["systems"] == []
    wait_until_gone(demo.pid)
