"""Rollouts: episodes whose chances are their own, spread as DD-PPO's, and what agents learn from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outpace.workloads import rollouts
from outpace.workloads.rollouts import (
    DISCOUNT,
    PATIENCE,
    SCENES,
    SIDES,
    Floats,
    Rollouts,
    Walker,
    _returns,
    _scenes,
    play,
)


def at_random(senses: Floats) -> Floats:
    return np.full((len(senses), SIDES), 1 / SIDES, dtype=np.float32)


def by_the_rule(senses: Floats) -> Floats:
    """Through the side that is open and does not lead back."""
    lit = senses[:, :SIDES] - 2 * np.roll(senses[:, SIDES:], 2, axis=1)
    return np.eye(SIDES, dtype=np.float32)[lit.argmax(axis=1)]


@pytest.fixture
def in_bright_light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "DIMNESS", 0.0)


@pytest.mark.usefixtures("in_bright_light")
def test_who_knows_the_rule_goes_straight_to_the_end() -> None:
    numbers = np.arange(64)
    played = play(numbers, numbers, by_the_rule)
    assert played.arrived.all()
    assert (played.steps == played.cells).all()
    assert (played.gains == 1).all()


def test_who_walks_at_random_runs_out_of_time() -> None:
    numbers = np.arange(200)
    played = play(numbers, numbers, at_random)
    assert played.arrived.mean() < 0.1
    assert (played.steps <= PATIENCE * played.cells).all()
    assert (played.steps[~played.arrived] == PATIENCE * played.cells[~played.arrived]).all()


def test_what_happens_in_an_episode_does_not_depend_on_its_companions() -> None:
    numbers = np.arange(100, 132)
    together, alone = play(numbers, numbers, at_random), play(numbers[5:6], numbers[5:6], at_random)
    mine = together.agents == 5
    assert together.steps[5] == alone.steps[0]
    assert (together.sides[mine] == alone.sides).all()
    assert (together.senses[mine] == alone.senses).all()


def test_corridors_are_as_unequal_as_the_times_of_dd_ppo() -> None:
    seconds = rollouts.lengths(np.arange(20_000)) / rollouts.CELLS_PER_S
    assert np.median(seconds) == pytest.approx(1.95, abs=0.13), "cells are whole"
    assert seconds.mean() == pytest.approx(2.29, abs=0.1)
    assert (seconds > 4).mean() == pytest.approx(0.043, abs=0.01)
    assert 20 < seconds.max() <= 43.5


def test_costs_are_about_one_and_heavy_tailed() -> None:
    task, model = Rollouts(), Walker()
    batches = [task.batch(step, rank, 8)[0] for step in range(40) for rank in range(8)]
    with torch.no_grad():
        costs = torch.tensor([task.cost(numbers, model(numbers)) for numbers in batches])
    assert 0.8 < costs.mean() < 2, "an untrained agent takes twice as long as one that knows the way"
    assert costs.max() / costs.median() > 5


def test_every_epoch_has_the_same_corridors_and_other_chances() -> None:
    task = Rollouts()
    first, second = (
        np.concatenate([task.batch(epoch * 64 + step, 0, 1)[0].numpy() for step in range(64)]) for epoch in (0, 1)
    )
    assert not set(first) & set(second)
    assert set(_scenes(first)) == set(_scenes(second))
    assert len(set(_scenes(first))) == SCENES


def test_held_out_corridors_are_none_that_are_trained_in() -> None:
    task = Rollouts()
    seen: list[np.ndarray] = []
    model = task.model()
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].numpy()))
    task.score(model)
    trained = _scenes(np.concatenate([task.batch(step, 0, 1)[0].numpy() for step in range(64)]))
    assert not set(_scenes(np.concatenate(seen))) & set(trained)


def test_returns_are_the_discounted_gains_from_each_step_on() -> None:
    numbers = np.arange(8)
    played = play(numbers, numbers, at_random)
    returns = _returns(played)
    for agent in numbers:
        gains = played.gains[played.agents == agent]
        expected = [sum(g * DISCOUNT**later for later, g in enumerate(gains[at:])) for at in range(len(gains))]
        assert returns[played.agents == agent] == pytest.approx(np.array(expected), abs=1e-4)


def test_outputs_tell_the_steps_and_how_well_each_agent_did() -> None:
    model, numbers = Walker(), np.arange(32)
    outputs = model(torch.from_numpy(numbers))
    assert outputs.shape == (32, 3)
    assert (outputs[:, 1] >= 1).all()
    assert ((outputs[:, 2] >= 0) & (outputs[:, 2] <= 1)).all()
    assert torch.equal(outputs, model(torch.from_numpy(numbers)))
