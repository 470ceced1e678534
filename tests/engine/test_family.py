"""Every strategy in real processes: nothing hangs, all ranks end with the same bits, and the model learns."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import outpace
from outpace import strategies
from tests.support import family
from tests.support.family import Resumed
from tests.support.family_checks import CHOICES, check
from tests.support.launches import in_one_launch

AVERAGE_ALWAYS = (
    "allreduce",
    "d-psgd",
    "decentlam",
    "local-sgd:every=1",
    "matcha:budget=1",
    "sgp",
    "wagma:sync_every=1,sync=wait",
)
IN_LOCK_STEP = ("sgp", "diloco:every=4", "d-psgd", "local-sgd:every=4", "decentlam", "noloco:every=5")
WITHOUT_WAITING = ("ad-psgd", "wagma:sync_every=5", "wagma:sync_every=5,sync=wait", "nonblocking", "eager-majority")
every_strategy = pytest.mark.parametrize("name", strategies.names())


@pytest.fixture(
    scope="module",
    params=[*(pytest.param(each, marks=pytest.mark.long) for each in ((2, 12, False), (4, 24, False))), (8, 20, True)],
    ids=["2", "4", "8"],
)
def in_rounds(request):
    """What the ranks saw of each strategy: one world trains with one after the other."""
    world, *options = request.param
    cases = {name: (CHOICES.get(name, name), *options) for name in strategies.names()}
    return in_one_launch(family.train, world, cases)


@pytest.fixture(scope="module")
def in_rounds_and_plain_loops():
    cases = {name: (CHOICES.get(name, name), 20) for name in strategies.names()}
    return in_one_launch(family.train_both, 3, cases)


@pytest.mark.timeout(600)
@every_strategy
def test_rounds_of_microbatches_end_with_the_same_bits_everywhere(name, in_rounds):
    check(in_rounds[name], name)


@pytest.mark.timeout(600)
@every_strategy
def test_rounds_and_plain_loops_of_uneven_data_end_with_the_same_bits_everywhere(name, in_rounds_and_plain_loops):
    for seen in zip(*in_rounds_and_plain_loops[name], strict=True):
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


@pytest.mark.parametrize("world", [3, pytest.param(6, marks=pytest.mark.long)])
def test_no_step_is_lost_or_doubled_when_ranks_meet_while_others_swap(world):
    # Swaps keep the mean of all weights, so that it counts the steps.
    for run in zip(*outpace.spawn(family.meet_and_count, world, (25, 12)), strict=True):
        steps = [mine for _, _, mine in run]
        for met, final, _ in run:
            assert met == pytest.approx([6] * world)
            assert final == pytest.approx(steps)


@pytest.fixture(scope="module")
def met_unevenly():
    return in_one_launch(family.meets_unevenly, 2, {strategy: (strategy,) for strategy in AVERAGE_ALWAYS})


@pytest.mark.parametrize("strategy", AVERAGE_ALWAYS)
def test_ranks_that_met_after_different_numbers_of_steps_go_on_together(strategy, met_unevenly):
    # Of two ranks that average with each other in every step, both have the same weights after every step.
    one, other = met_unevenly[strategy]
    assert one == other


def checkpointed(chosen: Sequence[str], directory: Path, part: str) -> dict[str, list[Resumed]]:
    """A part of a run with each strategy. Every part has processes of its own."""
    # Momentum of the inner optimizer stays with each rank and is not in another's checkpoint; decentlam has its own.
    momentum = {strategy: 0.9 if strategy == "decentlam" else 0.0 for strategy in chosen}
    cases = {name: (name, momentum[name], str(directory / f"{number}"), part) for number, name in enumerate(chosen)}
    return in_one_launch(family.checkpointed, 3, cases)


@pytest.fixture(scope="module")
def two_parts(tmp_path_factory):
    directory, chosen = tmp_path_factory.mktemp("parts"), [*IN_LOCK_STEP, *WITHOUT_WAITING]
    return checkpointed(chosen, directory, "first"), checkpointed(chosen, directory, "second")


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return checkpointed(IN_LOCK_STEP, tmp_path_factory.mktemp("straight"), "both")


@pytest.mark.parametrize("strategy", [*IN_LOCK_STEP, *WITHOUT_WAITING])
def test_what_is_loaded_is_what_was_saved_on_all_ranks(strategy, two_parts):
    first, second = (part[strategy] for part in two_parts)
    assert len({s.middle for s in (*first, *second)}) == 1
    assert [s.steps for s in second] == [s.steps for s in first]
    assert len({s.final for s in second}) == 1


@pytest.mark.parametrize("strategy", IN_LOCK_STEP)
def test_a_checkpoint_of_ranks_in_lock_step_goes_on_exactly(strategy, two_parts, straight):
    second, whole = two_parts[1][strategy], straight[strategy]
    assert second[0].middle == whole[0].middle
    assert second[0].final == whole[0].final


@pytest.mark.parametrize("strategy", WITHOUT_WAITING)
def test_a_checkpoint_of_ranks_that_do_not_wait_is_gone_on_from(strategy, two_parts):
    assert all(s.loss < s.loss_in_the_middle for s in two_parts[1][strategy])
