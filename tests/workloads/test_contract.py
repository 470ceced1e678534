"""What holds for each workload whose samples are dealt to ranks: equal everywhere, dealt once, harmless to measure."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from outpace.errors import InvalidRules
from outpace.workloads import WORKLOADS, Workload, workload
from outpace.workloads import code as code_file
from outpace.workloads import rollouts as rollouts_file
from outpace.workloads.code import Code
from outpace.workloads.rollouts import Rollouts
from outpace.workloads.sequences import Sequences
from outpace.workloads.vision import Vision

NAMES = ["sequences", "vision", "code", "rollouts"]
LARGEST_WORLD = {"sequences": 128, "vision": 128, "code": 32, "rollouts": 128}


def rows(inputs: Tensor) -> list[bytes]:
    """What each sample is, without padding, which is zero."""
    return [row.contiguous().numpy().tobytes().rstrip(b"\0") for row in inputs]


def everything(task: Workload) -> Tensor:
    """All samples of the first epoch, as one batch."""
    if isinstance(task, Sequences):
        return task._videos.padded(torch.arange(len(task._videos.lengths)))[0]
    if isinstance(task, Code):
        return code_file._padded(task._functions)[0]
    if isinstance(task, Vision):
        return task._inputs
    assert isinstance(task, Rollouts)
    return task._first + rollouts_file.SCENES + torch.arange(rollouts_file.SCENES)


def epoch(task: Workload, world: int, which: int = 0) -> Counter[bytes]:
    """How often each sample is seen in an epoch, by all ranks together."""
    steps = range(which * task.steps_per_epoch, (which + 1) * task.steps_per_epoch)
    batches = (task.batch(step, rank, world)[0] for step in steps for rank in range(world))
    return Counter(row for inputs in batches for row in rows(inputs))


def equal_parameters(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def trained(task: Workload, steps: int) -> nn.Module:
    """As one rank alone trains."""
    model = task.model()
    optimizer = task.optimizer(model)
    for step in range(steps):
        inputs, targets = task.batch(step, rank=0, world=1)
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_depends_on_its_arguments_and_nothing_else(name: str) -> None:
    forwards, backwards, other = workload(name, seed=3), workload(name, seed=3), workload(name, seed=4)
    steps = [0, 1, forwards.steps_per_epoch, 1000]
    expected = [forwards.batch(step, 1, 3) for step in steps]
    torch.manual_seed(99)
    for step, (inputs, targets) in zip(reversed(steps), reversed(expected), strict=True):
        again = backwards.batch(step, 1, 3)
        assert torch.equal(again[0], inputs)
        assert torch.equal(again[1], targets)
        assert rows(other.batch(step, 1, 3)[0]) != rows(inputs)


@pytest.mark.parametrize("name", NAMES)
def test_models_of_a_seed_begin_alike_and_leave_the_callers_random_numbers_alone(name: str) -> None:
    before = torch.get_rng_state()
    first, again, other = (workload(name, seed=seed).model() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert equal_parameters(first, again)
    assert not equal_parameters(first, other)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world", [1, 3, 8])
def test_each_sample_is_dealt_once_in_an_epoch_whatever_the_world(name: str, world: int) -> None:
    task = workload(name)
    assert epoch(task, world) == Counter(rows(everything(task)))


@pytest.mark.parametrize("name", NAMES)
def test_every_epoch_has_an_order_of_its_own(name: str) -> None:
    task = workload(name)
    first, later = (task.batch(step, 0, 8) for step in (0, task.steps_per_epoch))
    assert rows(first[0]) != rows(later[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world", [1, 3, 8, 16])
def test_ranks_share_a_mini_batch_evenly(name: str, world: int) -> None:
    task = workload(name)
    sizes = [len(task.batch(5, rank, world)[1]) for rank in range(world)]
    assert max(sizes) - min(sizes) <= 1
    assert abs(sum(sizes) - LARGEST_WORLD[name]) < world


@pytest.mark.parametrize("name", NAMES)
def test_a_world_that_does_not_fit_is_refused(name: str) -> None:
    largest = LARGEST_WORLD[name]
    for world in (0, largest + 1):
        with pytest.raises(InvalidRules, match=f"{name}'s mini-batch .* split over 1 to {largest} ranks, not {world}"):
            workload(name).batch(0, 0, world)


@pytest.mark.parametrize("name", ["sequences", "vision", "rollouts"])
def test_equal_parts_of_a_mini_batch_have_its_loss_in_the_mean(name: str) -> None:
    task = workload(name)
    model, (inputs, targets) = task.model(), task.batch(2, 1, 8)
    parts = zip(inputs.tensor_split(4), targets.tensor_split(4), strict=True)
    mean = torch.stack([task.loss(model(x), y) for x, y in parts]).mean()
    assert torch.allclose(mean, task.loss(model(inputs), targets), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_equal_parts_of_a_mini_batch_have_its_cost_in_the_mean(name: str) -> None:
    task = workload(name)
    model, (inputs, _) = task.model(), task.batch(2, 1, 8)
    costs = [task.cost(part, model(part)) for part in inputs.tensor_split(4)]
    assert sum(costs) / 4 == pytest.approx(task.cost(inputs, model(inputs)), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_gradient_from_a_single_sample_as_ddp_requires(name: str) -> None:
    task = workload(name)
    model, (inputs, targets) = task.model(), task.batch(0, 0, 8)
    loss = task.loss(model(inputs[:1]), targets[:1])
    assert loss.shape == ()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_models_keep_no_state_besides_their_weights(name: str) -> None:
    model = workload(name).model()
    assert not list(model.buffers())
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())


@pytest.mark.parametrize("name", NAMES)
def test_a_score_leaves_the_model_and_the_random_numbers_as_they_were(name: str) -> None:
    task = workload(name)
    model, state = task.model(), torch.get_rng_state()
    score = task.score(model)
    assert score == task.score(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert equal_parameters(model, task.model())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(("name", "steps", "before", "after"), [
    ("sequences", 120, 0.2, 0.8),
    ("vision", 60, 0.25, 0.65),
    ("rollouts", 120, 0.1, 0.5),
])  # fmt: skip
def test_one_rank_alone_learns(name: str, steps: int, before: float, after: float) -> None:
    task = workload(name)
    assert task.score(task.model()).metric < before
    assert task.score(trained(task, steps)).metric > after


def test_one_rank_alone_learns_code() -> None:
    task = workload("code")
    assert task.score(task.model()).metric > 4.5
    assert task.score(trained(task, 64)).metric < 3.0


def test_each_workload_has_a_line_for_those_who_choose_and_a_length_of_its_race() -> None:
    for name, maker in WORKLOADS.items():
        assert 30 < len((maker.__doc__ or "").partition("\n")[0]) < 120
        assert workload(name).race_epochs > 0
