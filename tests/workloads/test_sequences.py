"""Sequences: as unequally long as published, weighed by their length, and not to be told by single frames."""

from __future__ import annotations

import pytest
import torch

from outpace.errors import InvalidRules
from outpace.simulation import Scenario, simulate_training
from outpace.workloads import workload
from outpace.workloads.sequences import BATCH, CLASSES, TRAINED, Sequences, lengths_of


def costs(task: Sequences, world: int) -> torch.Tensor:
    """Of all mini-batches of an epoch."""
    steps = range(task.steps_per_epoch)
    batches = (task.batch(step, rank, world)[0] for step in steps for rank in range(world))
    return torch.tensor([task.cost(inputs, inputs) for inputs in batches])


@pytest.mark.parametrize("seed", [0, 1])
def test_videos_are_as_long_as_those_of_ucf101(seed: int) -> None:
    frames = Sequences(seed, stride=1)._videos.lengths.double()
    assert frames.mean() == pytest.approx(187, rel=0.01)
    assert frames.std() == pytest.approx(97, rel=0.03)
    assert (frames.min() >= 29, frames.max() <= 1776) == (True, True)


def test_of_each_video_every_eighth_frame_is_looked_at() -> None:
    assert torch.equal(
        Sequences()._videos.lengths.sort().values, (Sequences(stride=1)._videos.lengths.sort().values + 7) // 8
    )


def test_a_mini_batch_costs_one_in_the_mean_and_differs_as_videos_do() -> None:
    with_eight = costs(Sequences(), world=8)
    assert with_eight.mean() == pytest.approx(1, abs=0.001)
    assert 0.48 < with_eight.std() < 0.62, "97 / 187 among videos, 706 / 1235 among the paper's mini-batches"
    for world in (4, 16):
        assert costs(Sequences(), world).mean() == pytest.approx(1, abs=0.03)


def test_a_mini_batch_holds_videos_of_similar_length() -> None:
    task = Sequences()
    shares = [lengths_of(task.batch(step, 2, 8)[0]).double() for step in range(task.steps_per_epoch)]
    assert sum(float(lengths.mean() / lengths.max()) for lengths in shares) / len(shares) > 0.9


def test_padding_changes_neither_outputs_nor_costs() -> None:
    task = Sequences()
    model, (inputs, _) = task.model(), task.batch(0, 0, 8)
    padded = torch.cat([inputs, torch.zeros(len(inputs), 50, inputs.shape[2])], dim=1)
    assert torch.equal(model(padded), model(inputs))
    assert task.cost(padded, padded) == task.cost(inputs, inputs)
    alone = inputs[:1]
    assert torch.allclose(model(alone), model(inputs)[:1], atol=1e-6)
    assert task.cost(alone, alone) == int(lengths_of(alone)[0]) / task._mean_length


def test_no_single_frame_tells_the_motion() -> None:
    videos = Sequences()._videos
    of_frames = videos.classes.repeat_interleave(videos.lengths)
    means = torch.stack([videos.frames[of_frames == motion].mean(dim=0) for motion in range(CLASSES)])
    assert (means.max(dim=0).values - means.min(dim=0).values).max() < 0.05


@pytest.mark.parametrize("stride", [0, 30, 1.5, True, "many"])
def test_a_stride_that_leaves_no_frames_is_refused(stride: object) -> None:
    with pytest.raises(InvalidRules, match=r"must be a whole number of frames from 1 to 29"):
        Sequences(stride=stride)  # type: ignore[arg-type]


def test_options_are_read_from_the_name() -> None:
    task = workload("sequences:stride=16,seed=3")
    assert isinstance(task, Sequences)
    assert (task.stride, task.seed) == (16, 3)
    assert task.steps_per_epoch == TRAINED // BATCH


def test_simulated_ranks_learn_from_late_gradients() -> None:
    task = Sequences()
    scenario = Scenario(ranks=4, steps=80, imbalance="lengths:mean_ms=100", network="host")
    assert simulate_training("eager-solo", scenario, task).held_out.metric > 0.6
