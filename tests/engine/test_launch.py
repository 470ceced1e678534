"""`spawn` and torchrun: the first error is the user's, and no process is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import launched
import pytest
import ranks

import outpace

HERE = Path(__file__).parent


def start_launcher(directory: Path) -> tuple[subprocess.Popen, list[int]]:
    """A launcher whose three ranks train, and their process ids."""
    command = [sys.executable, str(HERE / "launched.py"), "launcher", str(directory)]
    process = subprocess.Popen(
        command, start_new_session=True, stderr=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c
    )
    files = [directory / f"{rank}.pid" for rank in range(3)]
    until(lambda: all(f.exists() and f.read_text() for f in files))
    return process, [int(f.read_text()) for f in files]


def hear_ctrl_c() -> None:
    """A shell has its background jobs ignore SIGINT, nohup SIGHUP, and so does all they start: these tests among it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ctrl_c_ends_all_ranks_with_exit_code_130_and_no_noise(tmp_path):
    process, pids = start_launcher(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
    until(lambda: not any(exists(pid) for pid in pids))


def test_no_rank_survives_a_killed_launcher(tmp_path):
    process, pids = start_launcher(tmp_path)
    process.kill()
    until(lambda: not any(exists(pid) for pid in pids))
    process.communicate()


def test_a_restarted_rank_adopts_the_others_weights_and_agrees():
    reports = outpace.spawn(launched.killed_and_restarted, 3)
    assert reports[2] is None, "the rank was never killed"
    other = reports[0]["other"]
    assert other["joined_at"] > 15
    finals = {reports[0]["final"], reports[1]["final"], other["final"]}
    assert len(finals) == 1
    views = [reports[0], reports[1], other]
    taken_in = {tuple(c) for view in views for members in view["rounds"].values() for c in members}
    assert {(2, 2, step) for step in range(1, 11)} <= taken_in
    digests: dict[str, str] = {}
    for view in views:  # a rank that adopts a snapshot skips the rounds before it
        for number, found in view["digests"].items():
            assert digests.setdefault(str(number), found) == found
    assert other["digests"]


def test_an_unchanged_torchrun_trains(tmp_path):
    torchrun = Path(sys.executable).parent / "torchrun"
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, torch, outpace\n"
        "model = torch.nn.Linear(4, 1)\n"
        "inner = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "with outpace.DistributedOptimizer(inner, strategy='eager-majority', model=model) as opt:\n"
        "    for _ in range(20):\n"
        "        opt.zero_grad()\n"
        "        model(torch.randn(8, 4)).pow(2).mean().backward()\n"
        "        opt.step()\n"
        "open(sys.argv[1] + os.environ['RANK'], 'w').write(str(model.weight.tolist()))\n"
    )
    command = [str(torchrun), "--standalone", "--nproc-per-node", "3", str(script), str(tmp_path / "rank")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    weights = [(tmp_path / f"rank{rank}").read_text() for rank in range(3)]
    assert len(set(weights)) == 1


def test_spawn_returns_what_each_rank_returned():
    assert outpace.spawn(ranks.my_rank, 3) == [0, 1, 2]


def test_a_run_in_which_every_rank_dies_raises():
    with pytest.raises(outpace.RankFailed, match=r"no rank finished.*SIGKILL"):
        outpace.spawn(kill_myself, 2)


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
