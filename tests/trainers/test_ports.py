"""Training scripts of the kind people bring along, with outpace in them, at toy size; as their first lines say."""

import os
import subprocess
import sys

import pytest
import torch

from tests.support.processes import ROOT
from tests.trainers.launching import finished, launch


@pytest.fixture
def text(tmp_path):
    """Four small files to learn from."""
    folder = tmp_path / "text"
    folder.mkdir()
    for name in "abcd":
        words = (f"{name} rank that is late does not hold up the others. " * (3 + i % 7) for i in range(40))
        (folder / f"{name}.md").write_text("\n\n".join(words))
    return folder


def test_a_gpt_in_a_loop_of_its_own_learns(text, tmp_path):
    saved = tmp_path / "gpt.pt"
    out = finished(launch("torchrun", "examples/gpt.py", "--text", text, "--steps", 30, "--checkpoint", saved))
    losses = [float(line.split()[-1]) for line in out.splitlines() if line.startswith("step")]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert "head.weight" in torch.load(saved, weights_only=True)["model"]


def test_an_image_classifier_with_lightning_learns_and_tests_its_best_checkpoint(tmp_path):
    pytest.importorskip("lightning", reason="skipped: lightning is not installed")
    script = ["examples/lightning_digits.py", "--epochs", "3", "--folder", tmp_path]
    out = finished(launch("python", *script))
    (line,) = [line for line in out.splitlines() if "test_accuracy" in line][:1]
    assert float("".join(c for c in line.split("test_accuracy")[1] if c in "0123456789.")) > 0.7
    assert list(tmp_path.rglob("*.ckpt"))


def test_a_trainer_script_learns_and_saves_its_model(text, tmp_path):
    pytest.importorskip("transformers", reason="skipped: transformers is not installed")
    folder = tmp_path / "out"
    script = ["examples/huggingface_text.py", "--text", text, "--steps", 20, "--folder", folder]
    out = finished(launch("torchrun", *script))
    (line,) = [line for line in out.splitlines() if line.startswith("perplexity")]
    assert float(line.split()[1]) < 60
    assert (folder / "model.safetensors").exists()
    assert (folder / "checkpoint-20" / "optimizer.pt").exists()


@pytest.mark.long
@pytest.mark.timeout(400)  # Ray starts a cluster of its own, twice
def test_ray_trains_with_workers_of_its_own_and_resumes(tmp_path):
    pytest.importorskip("ray", reason="skipped: ray is not installed")
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    for steps, before in ((40, 0), (60, 40)):
        command = [sys.executable, "examples/ray_train.py", "--folder", str(tmp_path), "--steps", str(steps)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=170, cwd=ROOT, env={**os.environ, **quiet}
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert f"after {steps} steps, {before} of them before" in done.stdout
