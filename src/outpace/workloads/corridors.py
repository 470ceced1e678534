"""Winding corridors: where the agents of `rollouts` walk. Owns the world and its chances; knows no policy's weights.

A corridor is a row of cells. Each has two open sides, to the cell before it and to the next, and walls at the other
two. An agent begins in the first cell, sees dimly which sides are open and remembers where it last went, and has the
time to take twice as many steps as the corridor has. Many walk at once, each in its own corridor.

All chance comes from an episode's number, by the generator of `outpace.imbalance.draws` in vectorised form: what
happens to one episode does not depend on which others are played beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outpace.imbalance.workloads import rollout_s

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
    """What those who still walk perceive."""
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
    begin = _mixed(_mixed(numbers.astype(np.uint64)) + np.uint64(purpose))
    bits = _mixed(begin[:, None] + np.arange(count, dtype=np.uint64) * _STEP)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = bits + _STEP
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


_STEP = np.uint64(0x9E3779B97F4A7C15)
_LENGTHS, _TURNS, _LIGHT, _CHOICES = range(4)  #: what chances are drawn for
