"""The digits: an honest split, an epoch that is one whatever the world, and a task that can be learned."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from outpace.errors import InvalidRules, OutpaceError
from outpace.simulation import Scenario, simulate_training
from outpace.workloads import digits, workload
from outpace.workloads.digits import BATCH, CLASSES, IMAGES, TRAINED, Digits


class Numbered(Digits):
    """Digits whose images are their own numbers, so that a batch tells which of them it has."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._inputs = torch.arange(TRAINED)

    def numbers(self, step: int, rank: int, world: int) -> list[int]:
        return [int(number) for number in self.batch(step, rank, world)[0]]

    def epoch(self, epoch: int, world: int) -> list[int]:
        """All images that the ranks of a world see in an epoch, step by step."""
        steps = range(epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch)
        return [number for step in steps for rank in range(world) for number in self.numbers(step, rank, world)]


@pytest.fixture
def scikit_learn_is_missing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    digits.images.cache_clear()
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    yield
    digits.images.cache_clear()


def rows(images: Tensor) -> list[tuple[float, ...]]:
    return [tuple(image.tolist()) for image in images]


def trained_by_plain_sgd(task: Digits, steps: int) -> nn.Module:
    model = task.model()
    optimizer = task.optimizer(model)
    for step in range(steps):
        inputs, targets = task.batch(step, rank=0, world=1)
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("split", [0, 1])
def test_trained_and_held_out_images_are_disjoint_and_together_all_there_are(split: int) -> None:
    task = Digits(split=split)
    trained, held_out = rows(task._inputs), rows(task._held_out[0])
    assert len(trained) == TRAINED
    assert not set(trained) & set(held_out)
    assert sorted(trained + held_out) == sorted(rows(digits.images()[0]))
    assert len(set(trained + held_out)) == IMAGES


def test_the_held_out_images_are_those_of_the_split_whatever_the_seed() -> None:
    first, again, other = (Digits(seed, split)._held_out[0] for seed, split in ((0, 0), (1, 0), (0, 1)))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_both_parts_have_their_share_of_each_class() -> None:
    task, (_, classes) = Digits(), digits.images()
    for digit in range(CLASSES):
        expected = TRAINED / IMAGES * int((classes == digit).sum())
        assert abs(int((task._targets == digit).sum()) - expected) <= 1


@pytest.mark.parametrize("world", [1, 2, 3, 7, 8, BATCH])
def test_each_training_image_is_seen_once_in_an_epoch_by_all_ranks_together(world: int) -> None:
    task = Numbered()
    assert sorted(task.epoch(0, world)) == sorted(task.epoch(1, world)) == list(range(TRAINED))


@pytest.mark.parametrize("world", [2, 3, 7, 8])
def test_the_mini_batch_is_the_same_in_every_world_and_split_evenly(world: int) -> None:
    task = Numbered()
    for step in (0, 5, task.steps_per_epoch + 2):
        parts = [task.numbers(step, rank, world) for rank in range(world)]
        assert sorted(number for part in parts for number in part) == sorted(task.numbers(step, 0, 1))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_every_epoch_and_every_seed_has_an_order_of_its_own() -> None:
    assert Numbered(0).epoch(0, 1) != Numbered(0).epoch(1, 1) != Numbered(1).epoch(1, 1)


def test_a_batch_depends_on_its_arguments_and_nothing_else() -> None:
    forwards, backwards = Digits(3), Digits(3)
    steps = [0, 1, forwards.steps_per_epoch, 1000]
    expected = [forwards.batch(step, 1, 3) for step in steps]
    torch.manual_seed(99)
    for step, (inputs, targets) in zip(reversed(steps), reversed(expected), strict=True):
        again = backwards.batch(step, 1, 3)
        assert torch.equal(again[0], inputs)
        assert torch.equal(again[1], targets)


def test_models_of_a_seed_begin_alike_and_leave_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second, other = Digits(1).model(), Digits(1).model(), Digits(2).model()
    assert torch.rand(1) == expected
    for mine, same, another in zip(first.parameters(), second.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, same)
        assert not torch.equal(mine, another)


def test_pixels_are_scaled_and_classes_are_the_ten_digits() -> None:
    pixels, classes = digits.images()
    assert (pixels.min(), pixels.max()) == (-1, 1)
    assert classes.unique().tolist() == list(range(CLASSES))


@pytest.mark.parametrize("world", [0, BATCH + 1])
def test_a_world_that_does_not_fit_is_refused(world: int) -> None:
    with pytest.raises(InvalidRules, match=f"split over 1 to {BATCH} ranks, not {world}"):
        Digits().batch(0, 0, world)


def test_plain_sgd_learns_the_digits() -> None:
    task = Digits()
    model = trained_by_plain_sgd(task, steps=30 * task.steps_per_epoch)
    before, after = task.score(task.model()), task.score(model)
    assert before.metric < 0.3
    assert after.metric >= 0.96
    assert after.loss < 0.2 < before.loss


@pytest.mark.parametrize("strategy", ["allreduce", "eager-solo"])
def test_simulated_ranks_learn_the_digits(strategy: str) -> None:
    task = Digits()
    scenario = Scenario(ranks=3, steps=3 * task.steps_per_epoch, imbalance="random:k=1,delay_ms=200")
    run = simulate_training(strategy, scenario, task)
    assert run.held_out.loss < 0.5 * task.score(task.model()).loss


def test_digits_are_known_by_name() -> None:
    task = workload("digits:seed=3,split=1")
    assert isinstance(task, Digits)
    assert (task.seed, task.split) == (3, 1)


@pytest.mark.usefixtures("scikit_learn_is_missing")
def test_without_scikit_learn_the_error_says_what_to_install() -> None:
    with pytest.raises(OutpaceError, match=r"pip install 'outpace\[data\]'"):
        Digits()
    assert workload("hyperplane"), "which needs no scikit-learn"


def test_scikit_learn_is_read_but_never_imported() -> None:
    program = "import sys, outpace.workloads as w; w.workload('digits'); sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_images_are_those_of_scikit_learn() -> None:
    program = (
        "import torch; from sklearn.datasets import load_digits; from outpace.workloads.digits import images\n"
        "theirs, (pixels, classes) = load_digits(), images()\n"
        "assert torch.equal((pixels + 1) * 8, torch.tensor(theirs.data).float())\n"
        "assert torch.equal(classes, torch.tensor(theirs.target))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
