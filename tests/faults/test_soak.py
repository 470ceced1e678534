"""The soak in small: it finds nothing wrong, and can be interrupted."""

import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def soak(*options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.faults.soak", *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def counted(output: str) -> tuple[int, int]:
    kills, stops = re.findall(r"(\d+) kills\b.*?(\d+) stops", output)[-1]
    return int(kills), int(stops)


def test_random_kills_with_restarts_stops_and_interrupts_do_no_harm():
    process = soak("--seconds", "10", "--job-seconds", "6", "--seed", "1")
    output, _ = process.communicate(timeout=150)
    assert process.returncode == 0, output
    assert min(counted(output)) > 0, output
    assert "wrong sums 0, other violations 0, hangs 0, leftovers 0" in output


def test_ctrl_c_ends_it_with_what_it_has_so_far():
    process = soak("--seconds", "600", "--job-seconds", "3", "--seed", "2")
    before = process.stdout.readline() + process.stdout.readline()  # the seed, and the first job
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, before + output
    assert "interrupted; so far:" in output
    so_far = counted(before)
    assert max(so_far) > 0, before
    assert all(after >= then for after, then in zip(counted(output), so_far, strict=True)), before + output
