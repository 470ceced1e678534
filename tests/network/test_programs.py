"""The programs of later tests, on one host, where they can be tried without a network."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = Path(__file__).parent / "programs" / "train.py"
STEPS = 30


def trained(directory: Path, *options: str) -> list[dict]:
    """What each of two ranks reported."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    apart = ["--log-dir", str(directory), "--redirects", "3"]  # else their lines are mixed
    command = [*torchrun, *apart, str(TRAIN), "--steps", str(STEPS), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, "\n".join(file.read_text() for file in sorted(directory.rglob("stderr.log")))
    outputs = [next(directory.glob(f"*/attempt_0/{rank}/stdout.log")) for rank in range(2)]
    return [json.loads(output.read_text().splitlines()[-1]) for output in outputs]


@pytest.mark.parametrize("strategy", ["allreduce", "eager-solo"])
def test_training_ends_with_equal_weights_and_a_report(tmp_path, strategy):
    reports = trained(tmp_path, "--strategy", strategy)
    assert [report["rank"] for report in reports] == [0, 1]
    assert len({report["digest"] for report in reports}) == 1
    for report in reports:
        assert report["steps"] == report["stats"]["steps"] == len(report["step_s"]) == STEPS
        longest = report["longest_step"]
        assert longest["seconds"] == max(report["step_s"]) == report["step_s"][longest["number"]]


def test_a_slow_rank_is_slow(tmp_path):
    slow_ms = 20
    waits = trained(tmp_path, "--strategy", "allreduce", "--slow-rank", "1", "--slow-ms", str(slow_ms))
    assert sum(waits[0]["step_s"]) > 0.9 * STEPS * slow_ms / 1e3
    assert sum(waits[0]["step_s"]) > sum(waits[1]["step_s"])
