"""Sequences of unequal length: an LSTM that recognises motions, after the video task of eager-SGD (PPoPP 2020).

Made-up videos that are as long as those of UCF101. All motions run through the same five poses over and over, each in
an order of its own: no frame tells the motion, only what follows what. Owns the data and the model.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer

from outpace.errors import InvalidRules
from outpace.imbalance.models import VIDEO_FRAMES
from outpace.randomness import generator, seeded
from outpace.spec import is_whole
from outpace.workloads.base import Buckets, Classification, check_world

POSES, CLASSES, FEATURES, HIDDEN = 5, 10, 6, 24
TRAINED, HELD_OUT, BATCH = 2560, 1024, 128  #: TRAINED is a multiple of BATCH
NOISE = 0.45  #: standard deviation, where poses are the square root of two apart
LEARNING_RATE = 0.02

_SHORTEST = 29  #: frames


class _Videos(NamedTuple):
    """Frames of all videos, one after the other, and where each of them ends."""

    frames: Tensor
    lengths: Tensor
    classes: Tensor

    def padded(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        ends = self.lengths.cumsum(0)
        chosen = [
            self.frames[end - length : end] for end, length in zip(ends[indices], self.lengths[indices], strict=True)
        ]
        return pad_sequence(chosen, batch_first=True), self.classes[indices]


class Sequences(Classification):
    """An LSTM that recognises motions in made-up videos, which are as unequally long as those of UCF101.

    Of each video, every `stride`-th frame is looked at: 4 to 222 by default, 24 in the mean. Each rank's mini-batch
    holds videos of similar length, so that ranks differ as videos do. The last feature is 1 where there is a frame.

    >>> task = Sequences(seed=1)
    >>> inputs, targets = task.batch(step=0, rank=3, world=8)
    >>> inputs.shape[0], inputs.shape[2], targets.shape
    (16, 7, torch.Size([16]))
    """

    by_nature = "lengths"
    race_epochs = 16.0

    def __init__(self, seed: int = 0, stride: int = 8) -> None:
        if not is_whole(stride) or not 1 <= stride <= _SHORTEST:
            raise InvalidRules(
                f"stride={stride!r} must be a whole number of frames from 1 to {_SHORTEST}, the shortest video's length"
            )
        self.seed, self.stride = seed, stride
        poses = torch.linalg.qr(torch.randn(FEATURES, POSES, generator=self._generator("poses")))[0].T
        self._videos = self._filmed(poses, TRAINED, "trained")
        self._held_out = self._filmed(poses, HELD_OUT, "held out")
        self.lengths, self.mini_batch = self._videos.lengths, BATCH
        self._buckets = Buckets(self.lengths, BATCH, f"sequences/{seed}")
        self.steps_per_epoch = self._buckets.steps
        self._mean_length = float(self.lengths.double().mean())

    def model(self) -> nn.Module:
        with seeded(f"sequences/{self.seed}/model"):
            return Recogniser()

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        check_world(world, BATCH, "sequences", "videos")
        return self.samples(self._buckets.indices(step, rank, world))

    def samples(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self._videos.padded(indices)

    def cost(self, inputs: Tensor, outputs: Tensor) -> float:
        return float(lengths_of(inputs).double().mean()) / self._mean_length

    def held_out(self) -> Iterable[tuple[Tensor, Tensor]]:
        by_length = self._held_out.lengths.argsort(stable=True)
        return [self._held_out.padded(part) for part in by_length.tensor_split(HELD_OUT // BATCH)]

    def _filmed(self, poses: Tensor, count: int, which: str) -> _Videos:
        """Videos of all lengths and motions, each beginning at any pose of its motion."""
        draws = self._generator(which)
        lengths = torch.tensor(_lengths(count, self.stride))[torch.randperm(count, generator=draws)]
        classes = torch.arange(count) % CLASSES
        begins = torch.randint(POSES, (count,), generator=draws)
        ends = lengths.cumsum(0)
        time = torch.arange(int(ends[-1])) - (ends - lengths - begins).repeat_interleave(lengths)
        shown = _orders()[classes.repeat_interleave(lengths), time % POSES]
        noise = NOISE * torch.randn(len(shown), FEATURES, generator=draws)
        return _Videos(torch.cat([poses[shown] + noise, torch.ones(len(shown), 1)], dim=1), lengths, classes)

    def _generator(self, which: str) -> torch.Generator:
        return generator(f"sequences/{self.seed}/{which}")


class Recogniser(nn.Module):
    """Reads each video to its own end, whatever it is padded to."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES + 1, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        lengths = lengths_of(inputs)
        trimmed = inputs[:, : int(lengths.max())]
        states, _ = self.lstm(trimmed)
        total: Tensor = (states * trimmed[:, :, -1:]).sum(dim=1)
        scores: Tensor = self.head(total / lengths[:, None])
        return scores


def lengths_of(inputs: Tensor) -> Tensor:
    return inputs[:, :, -1].sum(dim=1).long()


def _lengths(count: int, stride: int) -> list[int]:
    """Evenly spread quantiles, so that every seed has the published mean and spread."""
    frames = [VIDEO_FRAMES.quantile((place + 0.5) / count) for place in range(count)]
    return [-(-round(number) // stride) for number in frames]


def _orders() -> Tensor:
    """For each motion, the order of its poses: ten of the 24 ways to walk around all of them."""
    ways = [(0, *rest) for rest in itertools.permutations(range(1, POSES))]
    return torch.tensor(ways[:: len(ways) // CLASSES][:CLASSES])
