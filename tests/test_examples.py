import os
import re
import subprocess
import sys
from pathlib import Path

import torch

EXAMPLES = Path(__file__).parent.parent / "examples"


def torchrun(script, *arguments):
    """Runs an example to its end, and returns what it printed."""
    done = run(script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(script, *arguments, **env):
    """Runs an example as its docstring says, with fewer ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, str(EXAMPLES / script), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )


def test_train_learns_and_saves_a_checkpoint(tmp_path):
    file = tmp_path / "checkpoint.pt"
    out = torchrun("train.py", "--epochs", "4", "--checkpoint", str(file))
    accuracies = [float(line.split(":")[1].split("%")[0]) for line in out.splitlines() if line.startswith("epoch")]
    assert len(accuracies) == 4
    assert accuracies[-1] > 80
    saved = torch.load(file, weights_only=True)
    assert saved["epoch"] == 4
    assert saved["optimizer"]["outpace"]["steps"] == 4 * 48


def test_rounds_learns_and_counts_samples():
    out = torchrun("rounds.py")
    losses = [float(line.split()[-1]) for line in out.splitlines() if line.startswith("step")]
    assert losses[-1] < losses[0] / 2
    assert "step 10: 64 samples" in out


def test_checkpoint_goes_on_where_it_was_killed(tmp_path):
    straight, folder = tmp_path / "straight", tmp_path / "killed"
    expected = torchrun("checkpoint.py", "--folder", str(straight), "--steps", "100").splitlines()
    assert sorted(path.name for path in straight.iterdir()) == ["step-100", "step-80"]
    killed = run("checkpoint.py", "--folder", str(folder), "--steps", "100", OUTPACE_FAULT="kill:applying:50")
    assert "SIGKILL" in killed.stderr
    assert killed.stdout.splitlines() == expected[:2]
    out = torchrun("checkpoint.py", "--folder", str(folder), "--steps", "100").splitlines()
    assert out == ["goes on from step-40", *expected[2:]]
    assert out[-1].startswith("weights")


def test_text_of_unequal_length_is_drawn_from_one_pool_and_learned():
    out = torchrun("text.py", "--epochs", "3", "--slow-ms", "20")
    found = re.findall(r"epoch (\d), rank \d: (\d+) batches, loss (\d+\.\d{3})", out)  # ranks share the lines
    batches = [sum(int(made) for at, made, _ in found if int(at) == epoch) for epoch in range(3)]
    first, last = ([float(loss) for at, _, loss in found if int(at) == epoch] for epoch in (0, 2))
    assert len(found) == 6
    assert all(120 <= count <= 160 for count in batches)
    assert max(last) < min(first) / 2
