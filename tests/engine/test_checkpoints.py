"""Everything is killed, and goes on from the last complete checkpoint as if nothing had happened."""

import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

import outpace
from tests.support import checkpoints

STEPS, EVERY = 40, 5


class Killer(threading.Thread):
    """Ends all ranks of a run, without warning, a random time after one of them has made so many steps in this life."""

    def __init__(self, folder: Path, world: int, after_steps: int, pause_s: float) -> None:
        super().__init__(daemon=True)
        self.folder, self.world, self.after_steps, self.pause_s = folder, world, after_steps, pause_s
        self.before = steps_made(folder)
        for file in folder.glob("*.pid"):
            file.unlink()

    def run(self) -> None:
        while steps_made(self.folder) < self.before + self.after_steps:
            time.sleep(0.001)
        time.sleep(self.pause_s)
        for rank in range(self.world):
            os.kill(int((self.folder / f"{rank}.pid").read_text()), signal.SIGKILL)


def steps_made(folder: Path) -> int:
    file = folder / "0.steps"
    return file.read_text().count("\n") if file.exists() else 0


def killed(folder: Path, what, world: int, args: tuple, steps: int, seed: int) -> None:
    """One life that does not come to its end."""
    killer = Killer(folder, world, steps, random.Random(seed).random() * 0.02)
    (folder / "doomed").touch()
    killer.start()
    with pytest.raises(outpace.RankFailed, match=r"no rank finished.*SIGKILL"):
        outpace.spawn(what, world, (str(folder), *args))
    killer.join()
    (folder / "doomed").unlink()


def lines(folder: Path, rank: int) -> list[str]:
    return (folder / f"{rank}.steps").read_text().splitlines()


def assert_same_steps(folder: Path, straight: Path, world: int) -> None:
    """Every life has gone on where a checkpoint was, and all that any of them saw is what the straight run saw."""
    for rank in range(world):
        expected = {line.split()[0]: line for line in lines(straight, rank)}
        assert len(expected) == STEPS
        seen = lines(folder, rank)
        for line in seen:
            assert line == expected[line.split()[0]]
        assert {line.split()[0] for line in seen} == set(expected)


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    """A run of two ranks that nobody disturbs."""
    folder = tmp_path_factory.mktemp("straight")
    outpace.spawn(checkpoints.train, 2, (str(folder), STEPS, EVERY))
    return folder


@pytest.mark.parametrize("is_async", [False, True], ids=["save", "async_save"])
def test_a_run_that_was_killed_goes_on_bit_for_bit(straight, tmp_path, is_async):
    for seed, steps in enumerate((EVERY + 3, EVERY + 7)):
        killed(tmp_path, checkpoints.train, 2, (STEPS, EVERY, is_async), steps, seed)
    outpace.spawn(checkpoints.train, 2, (str(tmp_path), STEPS, EVERY, is_async))
    assert_same_steps(tmp_path, straight, 2)


def test_a_checkpoint_that_was_killed_while_it_was_written_is_not_gone_on_from(straight, tmp_path):
    with pytest.raises(outpace.RankFailed, match=r"no rank finished.*SIGKILL"):
        outpace.spawn(checkpoints.train, 2, (str(tmp_path), STEPS, EVERY, False, 3 * EVERY))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["10", "15.partial", "5"]
    assert list((tmp_path / "15.partial").glob("*.distcp")), "nothing of it was written"
    assert not (tmp_path / "15.partial" / ".metadata").exists(), "it was complete"
    outpace.spawn(checkpoints.train, 2, (str(tmp_path), STEPS, EVERY))
    assert_same_steps(tmp_path, straight, 2)
    assert steps_made(tmp_path) == STEPS + EVERY, "it went on from another one than the last that is complete"


def test_every_contribution_is_applied_once_over_all_lives_of_a_killed_run(tmp_path):
    world = 3
    args = (f"eager-majority:max_staleness={world * STEPS}", STEPS, EVERY)  # never too late: there are no more rounds
    for seed, steps in enumerate((EVERY + 2, EVERY + 6)):
        killed(tmp_path, checkpoints.count, world, args, steps, seed)
    for counts in outpace.spawn(checkpoints.count, world, (str(tmp_path), *args)):
        assert [value for row in counts for value in row] == pytest.approx([1.0] * world * STEPS)


@pytest.mark.parametrize("world", [1, 3])
def test_another_number_of_ranks_goes_on_from_the_same_weights(straight, tmp_path, world):
    shutil.copytree(straight / str(STEPS), tmp_path / str(STEPS))
    last = lines(straight, 0)[-1].split()[1]
    assert outpace.spawn(checkpoints.train, world, (str(tmp_path), 0, EVERY)) == [last] * world


def test_pending_work_and_the_furthest_replica_survive_a_cut_without_a_meeting(tmp_path):
    assert outpace.spawn(checkpoints.cut_without_a_meeting, 3, (str(tmp_path),)) == [(0, 0), (2, 0), (2, 1)]
    for counts in outpace.spawn(checkpoints.go_on_from, 3, (str(tmp_path), None)):
        assert counts == [pytest.approx([0.0, 0.0]), pytest.approx([1.0, 1.0]), pytest.approx([1.0, 0.0])]


def test_pending_work_is_given_again_by_its_own_rank_alone(tmp_path):
    outpace.spawn(checkpoints.cut_without_a_meeting, 3, (str(tmp_path),))
    for counts in outpace.spawn(checkpoints.go_on_from, 3, (str(tmp_path), 2)):
        assert counts[2] == pytest.approx([1.0, 0.0])
