"""Reinforcement learning: an actor-critic that learns to walk winding corridors, most short and a few very long.

The lengths of its corridors are spread as the times of DD-PPO in Habitat, which WAGMA-SGD (TPDS 2021, section 5)
measured. A rank's mini-batch is from corridors of similar length, as a rank there stays in one scene for a while. The
model plays the episodes itself, inside its forward pass, with the weights it has then.

A corridor is a row of cells. Each has two open sides, to the cell before it and to the next, and walls at the other
two. An agent starts in the first cell, sees dimly which sides are open, remembers where it last went, and may take
twice as many steps as the corridor has cells. Many walk at once, each in its own corridor. All chance follows from an
episode's number: what happens to one episode does not depend on which others are played beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from outpace.imbalance.models import rollout_s
from outpace.randomness import SPLITMIX_STEP, mix64, seed_of, seeded
from outpace.workloads.base import Buckets, Metric, Score, Workload, check_world

SCENES, HELD_OUT, BATCH, HIDDEN = 8192, 256, 128, 32
LEARNING_RATE = 0.01
DISCOUNT, VALUE_WEIGHT, ENTROPY_WEIGHT = 0.8, 0.25, 0.01
MEAN_STEPS = 11.4  #: of an episode, measured over the 320 steps of a race of 8 ranks

_SEEDS = 2**40  #: episodes of different seeds never share a number
_LENGTHS, _TURNS, _LIGHT, _CHOICES = range(4)  #: what chances are drawn for

SIDES = 4  #: north, east, south, west; the opposite of a side is two further on
SENSES = 2 * SIDES  #: how open each side looks, and which way the agent went last
CELLS_PER_S = 4.0  #: of DD-PPO's time: 7 cells at least, 8 in the median, 174 at most
DIMNESS = 0.55  #: by how much an open side may look less open, and a wall more
PATIENCE = 2  #: steps that an agent may take for each cell

Floats = NDArray[np.float32]
Whole = NDArray[np.int64]
Policy = Callable[[Floats], Floats]  #: from senses to one probability for each side, for each agent


class Played(NamedTuple):
    """What agents saw, did and reached. Rows of one moment stand together; those who have arrived have none."""

    senses: Floats  #: one row for each agent and step
    sides: Whole  #: where it went
    agents: Whole  #: who it was
    moments: Whole  #: at which step
    gains: Floats  #: 1 for a cell further, -1 for a cell back, 0 before a wall
    steps: Whole  #: that each agent took in all
    cells: Whole  #: of each agent's corridor
    arrived: NDArray[np.bool_]  #: which agents came to the end


def play(episodes: Whole, scenes: Whole, policy: Policy) -> Played:
    """Lets all agents walk until they have arrived, or their time is over. Scenes give the corridors' lengths and
    turns, episodes all other chances."""
    cells = lengths(scenes)
    exits = _exits(scenes, int(cells.max()))
    limit = int(cells.max()) * PATIENCE
    dim = _uniform(episodes, limit * SIDES, _LIGHT).reshape(len(episodes), limit, SIDES).astype(np.float32) * DIMNESS
    choice = _uniform(episodes, limit, _CHOICES)
    place, last = np.zeros_like(cells), np.full_like(cells, -1)
    steps = np.zeros_like(cells)
    rows: list[tuple[Floats, Whole, Whole, Whole, Floats]] = []
    walking = np.arange(len(episodes))
    moment = 0
    while len(walking):
        senses = _senses(exits, place, last, walking, dim[walking, moment])
        sides = _drawn(policy(senses), choice[walking, moment])
        gains = _gains(exits, place, walking, sides)
        place[walking] += gains.astype(np.int64)
        last[walking] = np.where(gains != 0, sides, last[walking])
        steps[walking] += 1
        rows.append((senses, sides, walking, np.full_like(walking, moment), gains))
        moment += 1
        walking = walking[(place[walking] < cells[walking]) & (moment < PATIENCE * cells[walking])]
    senses, sides, agents, moments, gains = (np.concatenate(column) for column in zip(*rows, strict=True))
    return Played(senses, sides, agents, moments, gains, steps, cells, arrived=place >= cells)


def lengths(scenes: Whole) -> Whole:
    """Cells of each scene's corridor, as unequal as DD-PPO's iterations are long."""
    chances = 1 - _uniform(scenes, 1, _LENGTHS)[:, 0]
    return np.array([round(CELLS_PER_S * rollout_s(chance)) for chance in chances])


def _exits(scenes: Whole, most: int) -> Whole:
    """The side that leads on, for each cell. Never the one that leads back."""
    turns = (_uniform(scenes, most, _TURNS) * 3).astype(np.int64) - 1
    return np.cumsum(turns, axis=1) % SIDES


def _senses(exits: Whole, place: Whole, last: Whole, walking: Whole, dim: Floats) -> Floats:
    senses = np.zeros((len(walking), SENSES), dtype=np.float32)
    everyone, here = np.arange(len(walking)), place[walking]
    senses[everyone, exits[walking, here]] = 1
    inside = here > 0
    senses[everyone[inside], (exits[walking, here - 1][inside] + 2) % SIDES] = 1
    senses[:, :SIDES] += np.where(senses[:, :SIDES] > 0, -dim, dim)
    moved = last[walking] >= 0
    senses[everyone[moved], SIDES + last[walking][moved]] = 1
    return senses


def _gains(exits: Whole, place: Whole, walking: Whole, sides: Whole) -> Floats:
    here = place[walking]
    further = sides == exits[walking, here]
    back = (here > 0) & (sides == (exits[walking, here - 1] + 2) % SIDES)
    gains: Floats = further.astype(np.float32) - back
    return gains


def _drawn(probabilities: Floats, choice: NDArray[np.float64]) -> Whole:
    """The side that each agent takes: where its number falls among the probabilities."""
    below = probabilities.cumsum(axis=1)[:, :-1] <= choice[:, None]
    sides: Whole = below.sum(axis=1)
    return sides


def _uniform(numbers: Whole, count: int, purpose: int) -> NDArray[np.float64]:
    """`count` numbers from 0 to 1 for each episode or scene: SplitMix64, begun at a mixture of its number."""
    step = np.uint64(SPLITMIX_STEP)
    begin = mix64(mix64(numbers.astype(np.uint64) + step) + np.uint64(purpose) + step)
    bits = mix64(begin[:, None] + np.arange(1, count + 1, dtype=np.uint64) * step)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


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
    by_nature = "roll-outs"
    steps_per_epoch = SCENES // BATCH
    race_epochs = 5.0

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._first = (seed_of(f"rollouts/{seed}") % 2**20) * _SEEDS
        cells = lengths(self._first + np.arange(SCENES))
        self._buckets = Buckets(torch.from_numpy(cells), BATCH, f"rollouts/{seed}")

    def model(self) -> nn.Module:
        with seeded(f"rollouts/{self.seed}/model"):
            return Walker()

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def batch(self, step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        check_world(world, BATCH, "rollouts", "episodes")
        epoch = step // self.steps_per_epoch
        episodes = self._first + (epoch + 1) * SCENES + self._buckets.indices(step, rank, world)
        return episodes, episodes

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, 0].mean()

    def cost(self, inputs: Tensor, outputs: Tensor) -> float:
        return float(outputs[:, 1].detach().double().mean()) / MEAN_STEPS

    @torch.no_grad()
    def score(self, model: nn.Module) -> Score:
        outputs = model(self._first + _SEEDS // 2 + torch.arange(HELD_OUT))
        return Score(float(outputs[:, 0].mean()), float(outputs[:, 2].mean()))


class Walker(nn.Module):
    """Plays the episodes of a mini-batch, then looks back on them with gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(SENSES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, SIDES))
        self.value = nn.Sequential(nn.Linear(SENSES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))

    def forward(self, episodes: Tensor) -> Tensor:
        """For each episode: its loss, the steps it took, and its success weighted by path length."""
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
