"""Every strategy in real processes: nothing hangs, all ranks end with the same bits, and the model learns."""

import pytest
import torch

import outpace
from outpace import strategies
from tests.support import family
from tests.support.family import Resumed
from tests.support.family_checks import CHOICES, check

AVERAGE_ALWAYS = (
    "allreduce",
    "d-psgd",
    "decentlam",
    "local-sgd:every=1",
    "matcha:budget=1",
    "sgp",
    "wagma:sync_every=1,sync=wait",
)
every_strategy = pytest.mark.parametrize("name", strategies.names())


@pytest.mark.parametrize(("world", "steps", "is_uneven"), [(2, 12, False), (4, 24, False), (8, 20, True)])
@every_strategy
def test_rounds_of_microbatches_end_with_the_same_bits_everywhere(name, world, steps, is_uneven):
    check(outpace.spawn(family.train, world, (CHOICES.get(name, name), steps, is_uneven)), name)


@every_strategy
def test_rounds_and_plain_loops_of_uneven_data_end_with_the_same_bits_everywhere(name):
    for seen in zip(*outpace.spawn(family.train_both, 3, (CHOICES.get(name, name), 20)), strict=True):
        check(seen, name)


@pytest.fixture
def _one_thread(monkeypatch):
    """This process as the only rank of a world, with as many threads as a rank among others has."""
    monkeypatch.setenv("RANK", "0")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("plain", [False, True])
@every_strategy
def test_a_rank_alone_learns(name, plain):
    seen = family.train(CHOICES.get(name, name), 24, False, plain)
    assert seen.is_finite
    assert seen.after < 0.75 * seen.before


@pytest.mark.parametrize("world", [3, 6])
def test_no_step_is_lost_or_doubled_when_ranks_meet_while_others_swap(world):
    # Swaps keep the mean of all weights, so that it counts the steps.
    for run in zip(*outpace.spawn(family.meet_and_count, world, (25, 12)), strict=True):
        steps = [mine for _, _, mine in run]
        for met, final, _ in run:
            assert met == pytest.approx([6] * world)
            assert final == pytest.approx(steps)


@pytest.mark.parametrize("strategy", AVERAGE_ALWAYS)
def test_ranks_that_met_after_different_numbers_of_steps_go_on_together(strategy):
    # Of two ranks that average with each other in every step, both have the same weights after every step.
    one, other = outpace.spawn(family.meets_unevenly, 2, (strategy,))
    assert one == other


def two_parts(strategy: str, momentum: float, path: str) -> tuple[list[Resumed], list[Resumed]]:
    """Each part in processes of its own. What is loaded is what was saved, on all ranks."""
    first = outpace.spawn(family.checkpointed, 3, (strategy, momentum, path, "first"))
    second = outpace.spawn(family.checkpointed, 3, (strategy, momentum, path, "second"))
    assert len({s.middle for s in (*first, *second)}) == 1
    assert [s.steps for s in second] == [s.steps for s in first]
    assert len({s.final for s in second}) == 1
    return first, second


@pytest.mark.parametrize(
    "strategy", ["sgp", "diloco:every=4", "d-psgd", "local-sgd:every=4", "decentlam", "noloco:every=5"]
)
def test_a_checkpoint_of_ranks_in_lock_step_goes_on_exactly(strategy, tmp_path):
    # Momentum of the inner optimizer stays with each rank and is not in another's checkpoint; decentlam has its own.
    momentum = 0.9 if strategy == "decentlam" else 0.0
    straight = outpace.spawn(family.checkpointed, 3, (strategy, momentum, str(tmp_path / "straight"), "both"))
    _, second = two_parts(strategy, momentum, str(tmp_path / "parts"))
    assert second[0].middle == straight[0].middle
    assert second[0].final == straight[0].final


@pytest.mark.parametrize(
    "strategy", ["ad-psgd", "wagma:sync_every=5", "wagma:sync_every=5,sync=wait", "nonblocking", "eager-majority"]
)
def test_a_checkpoint_of_ranks_that_do_not_wait_is_gone_on_from(strategy, tmp_path):
    _, second = two_parts(strategy, 0.0, str(tmp_path / "parts"))
    assert all(s.loss < s.loss_in_the_middle for s in second)
