"""The examples do what their docstrings say."""

import re
from pathlib import Path

import pytest
import torch

import outpace
from tests.support.warm import run_script

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_train_learns_and_saves_a_checkpoint(tmp_path):
    file = tmp_path / "checkpoint.pt"
    script = EXAMPLES / "train.py"
    out = run_script(script, "--epochs", "4", "--checkpoint", str(file), output=tmp_path / "printed")
    accuracies = [float(line.split(":")[1].split("%")[0]) for line in out.splitlines() if line.startswith("epoch")]
    assert len(accuracies) == 4
    assert accuracies[-1] > 80
    saved = torch.load(file, weights_only=True)
    assert saved["epoch"] == 4
    assert saved["optimizer"]["outpace"]["steps"] == 4 * 48


def test_rounds_learns_and_counts_samples(tmp_path):
    out = run_script(EXAMPLES / "rounds.py", output=tmp_path / "printed")
    losses = [float(line.split()[-1]) for line in out.splitlines() if line.startswith("step")]
    assert losses[-1] < losses[0] / 2
    assert "step 10: 64 samples" in out


def checkpoint(folder, **env):
    script = EXAMPLES / "checkpoint.py"
    return run_script(script, "--folder", str(folder), "--steps", "100", output=folder.with_suffix(".printed"), **env)


def test_checkpoint_goes_on_where_it_was_killed(tmp_path):
    straight, folder = tmp_path / "straight", tmp_path / "killed"
    expected = checkpoint(straight).splitlines()
    assert sorted(path.name for path in straight.iterdir()) == ["step-100", "step-80"]
    with pytest.raises(outpace.RankFailed, match="SIGKILL"):
        checkpoint(folder, OUTPACE_FAULT="kill:applying:50")
    assert folder.with_suffix(".printed").read_text().splitlines() == expected[:2]
    out = checkpoint(folder).splitlines()
    assert out == ["goes on from step-40", *expected[2:]]
    assert out[-1].startswith("weights")


def test_text_of_unequal_length_is_drawn_from_one_pool_and_learned(tmp_path):
    out = run_script(EXAMPLES / "text.py", "--epochs", "3", "--slow-ms", "20", output=tmp_path / "printed")
    found = re.findall(r"epoch (\d), rank \d: (\d+) batches, loss (\d+\.\d{3})", out)  # ranks share the lines
    batches = [sum(int(made) for at, made, _ in found if int(at) == epoch) for epoch in range(3)]
    first, last = ([float(loss) for at, _, loss in found if int(at) == epoch] for epoch in (0, 2))
    assert len(found) == 6
    assert all(120 <= count <= 160 for count in batches)
    assert max(last) < min(first) / 2
