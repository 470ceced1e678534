"""`spawn` and torchrun: the first error is the user's, and no process is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import outpace
from tests.support import launched, ranks
from tests.support.processes import exists, finding_tests, hear_ctrl_c, until


def start_launcher(directory: Path) -> tuple[subprocess.Popen, list[int]]:
    """A launcher whose three ranks train, and their process ids."""
    command = [sys.executable, launched.__file__, "launcher", str(directory)]
    process = subprocess.Popen(
        command,
        env=finding_tests(),
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_ctrl_c,
    )
    files = [directory / f"{rank}.pid" for rank in range(3)]
    until(lambda: all(f.exists() and f.read_text() for f in files))
    return process, [int(f.read_text()) for f in files]


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
