"""The examples do what their docstrings say."""

import json
import os
import re
import subprocess
import sys
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
    found = re.findall(r"epoch (\d), rank (\d): (\d+) batches, loss (\d+\.\d{3})", out)  # ranks share the lines
    batches = [sum(int(made) for at, _, made, _ in found if int(at) == epoch) for epoch in range(3)]
    first, last = ([float(loss) for at, _, _, loss in found if int(at) == epoch] for epoch in (0, 2))
    assert len(found) == 6
    assert batches == [67] * 3, out  # by whomever
    assert max(last) < 0.8 * min(first)


def test_the_conversion_from_ddp_changes_a_few_lines_and_trains_as_well(tmp_path):
    for name in ("ddp", "ddp_with_outpace"):
        out = run_script(EXAMPLES / f"{name}.py", "--epochs", "2", output=tmp_path / name)
        losses = [float(line.split()[-1]) for line in out.splitlines() if line.startswith("epoch")]
        assert len(losses) == 2
        assert losses[1] < losses[0]
    lines = [set((EXAMPLES / f"{name}.py").read_text().splitlines()) for name in ("ddp", "ddp_with_outpace")]
    assert len(lines[1] - lines[0]) == 6


def rollouts(output, *options):
    """Of each rank: the share of right moves, and the seconds it waited."""
    out = run_script(EXAMPLES / "rollouts.py", "--episodes", "30", *options, output=output)
    found = re.findall(r"rank \d: (\d+)% of the last moves were right, waited (\d+\.\d\d) s", out)
    assert len(found) == 2
    return [int(right) for right, _ in found], [float(waited_s) for _, waited_s in found]


def test_rollouts_learn_and_wait_less_than_if_all_waited_for_all(tmp_path):
    right, waited_s = rollouts(tmp_path / "printed")
    assert min(right) > 60
    assert sum(waited_s) < sum(rollouts(tmp_path / "as with DDP", "--strategy", "allreduce")[1])


def test_a_rank_that_dies_in_the_example_comes_back():
    command = [sys.executable, "-m", "outpace", "run", "-n", "3", str(EXAMPLES / "restart.py")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=env)
    assert done.returncode == 0, done.stderr
    assert re.search(r"rank 1 is back, at version \d+", done.stdout)
    assert sorted(re.findall(r"rank (\d), life (\d)", done.stdout)) == [("0", "1"), ("1", "2"), ("2", "1")]


def test_two_hosts_agree():
    command = [sys.executable, str(EXAMPLES / "two_hosts.py"), "--local", "--steps", "20"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    weights = done.stdout.split()[1:]
    assert len(weights) == 4
    assert len(set(weights)) == 1


def test_the_notebook_runs_from_its_first_cell_to_its_last():
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    waited = re.findall(r"(\S+), rank 1: loss \d+\.\d+, waited (\d+\.\d+) s", done.stdout)
    assert [strategy for strategy, _ in waited] == ["allreduce", "eager-majority"]
    assert "simulated seconds" in done.stdout


def test_the_index_names_every_example():
    listed = set(re.findall(r"\]\(([^)]+)\)", (EXAMPLES / "README.md").read_text()))
    assert listed == {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
