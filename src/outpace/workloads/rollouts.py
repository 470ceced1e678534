"""Reinforcement learning: an actor-critic that learns to walk winding corridors, most short and a few very long.

The lengths of its corridors are spread as the times of DD-PPO in Habitat, which WAGMA-SGD (TPDS 2021, section 5)
measured. A rank's mini-batch is from corridors of similar length, as a rank there stays in one scene for a while. The
model plays the episodes itself, inside its forward pass, with the weights it has then. Owns learning from them;
`corridors` owns the world.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outpace.workloads.base import Metric, Score, Workload
from outpace.workloads.corridors import SENSES, SIDES, Floats, Played, Policy, Whole, lengths, play
from outpace.workloads.draws import Buckets, check_world, seed_of, seeded

SCENES, HELD_OUT, BATCH, HIDDEN = 8192, 256, 128, 32
LEARNING_RATE = 0.01
DISCOUNT, VALUE_WEIGHT, ENTROPY_WEIGHT = 0.8, 0.25, 0.01
MEAN_STEPS = 11.4  #: of an episode, measured over the 320 steps of a race of 8 ranks

_SEEDS = 2**40  #: episodes of different seeds never share a number


class Rollouts(Workload):
    """Reinforcement learning in corridors, most short and a few very long, as unequal as DD-PPO's roll-outs.

    A mini-batch's inputs are the numbers of its episodes, from which all their chances follow; in each epoch every
    corridor is walked once, with other chances. The metric is SPL, as of DD-PPO: success weighted by path length, 1
    for an agent that goes to the end of each corridor without a detour.

    >>> task = Rollouts(seed=1)
    >>> episodes, _ = task.batch(step=0, rank=3, world=8)
    >>> episodes.shape, episodes.dtype
    (torch.Size([16]), torch.int64)
    """

    metric = Metric("SPL", higher_is_better=True, is_share=True)
    race_epochs = 5.0

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._first = (seed_of(f"rollouts/{seed}") % 2**20) * _SEEDS
        cells = lengths(self._first + np.arange(SCENES))
        self._buckets = Buckets(torch.from_numpy(cells), BATCH, f"rollouts/{seed}")

    @property
    def steps_per_epoch(self) -> int:
        """64, in a world of any size."""
        return SCENES // BATCH

    def model(self) -> nn.Module:
        """A policy and a value, with one hidden layer each."""
        with seeded(f"rollouts/{self.seed}/model"):
            return Walker()

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Adam."""
        return torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        """The numbers of this rank's episodes, twice."""
        check_world(world, BATCH, "rollouts", "episodes")
        epoch = step // self.steps_per_epoch
        episodes = self._first + (epoch + 1) * SCENES + self._buckets.indices(step, rank, world)
        return episodes, episodes

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean of what the episodes have to teach."""
        return outputs[:, 0].mean()

    def cost(self, inputs: Tensor, outputs: Tensor) -> float:
        """Steps of an episode, in the mean of these, where 1 is the mean in training."""
        return float(outputs[:, 1].detach().double().mean()) / MEAN_STEPS

    @torch.no_grad()
    def score(self, model: nn.Module) -> Score:
        """The loss, and success weighted by path length, in corridors that no rank walks in training."""
        outputs = model(self._first + _SEEDS // 2 + torch.arange(HELD_OUT))
        return Score(float(outputs[:, 0].mean()), float(outputs[:, 2].mean()))


class Walker(nn.Module):
    """Plays the episodes of a mini-batch, then looks back on them with gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(SENSES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, SIDES))
        self.value = nn.Sequential(nn.Linear(SENSES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))

    def forward(self, episodes: Tensor) -> Tensor:
        """For each episode: what is to be made small, the steps it took, and its success weighted by path length."""
        numbers = episodes.numpy()
        played = play(numbers, _scenes(numbers), _quick(self.policy))
        facts = torch.from_numpy(np.stack([played.steps, played.arrived * played.cells / played.steps])).float()
        return torch.stack([self._lesson(played), *facts], dim=1)

    def _lesson(self, played: Played) -> Tensor:
        """Actor and critic, REINFORCE with the value as baseline: for each episode, the mean over its steps."""
        senses, sides, agents = (torch.from_numpy(part) for part in (played.senses, played.sides, played.agents))
        logs = self.policy(senses).log_softmax(dim=1)
        values = self.value(senses)[:, 0]
        returns = torch.from_numpy(_returns(played))
        advantages = (returns - values).detach()
        entropy = -(logs.exp() * logs).sum(dim=1)
        each = VALUE_WEIGHT * (returns - values) ** 2 - ENTROPY_WEIGHT * entropy
        each = each - logs.gather(1, sides[:, None])[:, 0] * advantages
        total = torch.zeros(len(played.cells)).index_add(0, agents, each)
        return total / torch.from_numpy(played.steps)


def _scenes(numbers: Whole) -> Whole:
    """The corridor of each episode: the same ones in every epoch, others for what is held out."""
    held_out = numbers % _SEEDS >= _SEEDS // 2
    return np.where(held_out, numbers, numbers // _SEEDS * _SEEDS + numbers % SCENES)


def _returns(played: Played) -> Floats:
    """Discounted sum of what each step and those after it gained, by going back through the moments."""
    returns = played.gains.copy()
    bounds = np.searchsorted(played.moments, np.arange(played.moments[-1] + 2))
    later = np.zeros(len(played.cells), dtype=np.float32)
    for moment in range(len(bounds) - 2, -1, -1):
        rows = slice(bounds[moment], bounds[moment + 1])
        returns[rows] += DISCOUNT * later[played.agents[rows]]
        later[played.agents[rows]] = returns[rows]
    return returns


def _quick(policy: nn.Sequential) -> Policy:
    """The policy as it is now, without torch: a step of a few agents costs it more in calls than in computing."""
    weights = [parameter.detach().numpy() for parameter in policy.parameters()]

    def probabilities(senses: Floats) -> Floats:
        hidden = np.tanh(senses @ weights[0].T + weights[1])
        scores = hidden @ weights[2].T + weights[3]
        raised = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares: Floats = raised / raised.sum(axis=1, keepdims=True)
        return shares

    return probabilities
