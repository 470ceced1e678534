"""One rank of four is stopped, or killed: who waits for it, and who goes on."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import outpace
from tests.support import family, ranks
from tests.support.family import BETWEEN_STEPS, VICTIMS_STEPS, Board, Seen

WORLD, VICTIM = 4, 2
OTHERS = [rank for rank in range(WORLD) if rank != VICTIM]
MORE = 30  # steps that each of the others makes without the victim
AFTER_A_CUT = 150  # likewise, so many that snapshots are made and the log is cut
STOPPED_S = 1.0  # hundreds of steps of whoever does not wait
PATIENCE_S = 60.0  # no measure of anything: a hang becomes an error
MID_STEP = ["before-append", "after-append", "before-wake"]

GO_ON = [
    ("wagma", BETWEEN_STEPS),
    *[("wagma", point) for point in MID_STEP],
    ("ad-psgd", BETWEEN_STEPS),
    ("nonblocking", BETWEEN_STEPS),
    ("eager-solo", BETWEEN_STEPS),
    ("eager-majority", BETWEEN_STEPS),
    ("ringmaster", BETWEEN_STEPS),
    ("rennala", BETWEEN_STEPS),
    ("m-sync:m=3", BETWEEN_STEPS),
]

# How many steps ahead of the stopped rank anybody can come: none where each step needs all ranks, what is left until
# the next average where only some do, and the distance in the graph where each step needs the neighbours.
WAIT = [
    ("allreduce", 0),
    ("dropcompute", 0),
    ("local-sgd:every=4", 3),
    ("wagma:sync_every=4,sync=wait", 3),
    ("diloco:every=2", 1),
    ("d-psgd", 1),
    ("decentlam", 1),
    ("sgp", 2),
    ("matcha:budget=1", 2),
    ("al-dsgd", 2),
]

SURVIVE = [
    "wagma:sync_every=5",
    "wagma:sync_every=5,sync=wait",
    "d-psgd",
    "ad-psgd",
    "sgp",
    "local-sgd:every=4",
    "nonblocking",
]


class Watcher(threading.Thread):
    """Sees from outside what becomes of the ranks: any of them may be the one that waits."""

    def __init__(self, board: Board, then: Callable[["Watcher"], None]) -> None:
        super().__init__()
        self.board = board
        self.trouble: BaseException | None = None
        self._then = then

    def run(self) -> None:
        try:
            self.until(lambda: self.board.steps(VICTIM) >= VICTIMS_STEPS, "the victim has made its steps")
            self.until(lambda: ranks.lost(self.board.process(VICTIM)), "the victim is stopped or killed")
            self._then(self)
        except BaseException as error:
            self.trouble = error
        finally:
            self.board.end()
            self.wake()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Looks until it holds."""
        began = time.monotonic()
        while not holds():
            assert time.monotonic() - began < PATIENCE_S, f"not true after {PATIENCE_S:.0f} s: {what}; {self.steps()}"
            time.sleep(0.002)

    def until_more(self, who: list[int], steps: int) -> None:
        """Each of these ranks has made so many more steps than now."""
        now = self.steps()
        self.until(lambda: all(self.board.steps(rank) >= now[rank] + steps for rank in who), f"{steps} more of {who}")

    def steps(self) -> list[int]:
        """Of all ranks so far."""
        return [self.board.steps(rank) for rank in range(WORLD)]

    def wake(self) -> None:
        """Lets the victim go on, if it lives."""
        if ranks.lost(self.board.process(VICTIM)):
            try:
                os.kill(self.board.process(VICTIM), signal.SIGCONT)
            except ProcessLookupError:
                return


def watched(fn: Callable, strategy: str, point: str, number: int, path: Path, then: Callable[[Watcher], None]) -> list:
    """What each rank returns."""
    watcher = Watcher(Board(path / "board"), then)
    watcher.start()
    try:
        seen = outpace.spawn(fn, WORLD, (strategy, str(path / "board"), VICTIM, point, number))
    finally:
        watcher.board.end()
        watcher.join()
    if watcher.trouble is not None:
        raise watcher.trouble
    return seen


def run(strategy: str, point: str, number: int, path: Path, then: Callable[[Watcher], None]) -> list[Seen | None]:
    """Trains with a watcher, and checks that all who are left end with equal weights."""
    seen = watched(family.march, strategy, point, number, path, then)
    left = [s for s in seen if s is not None]
    assert len({s.final for s in left}) == 1
    assert all(s.is_finite for s in left)
    return seen


def others_go_on(watcher: Watcher, more: int = MORE) -> None:
    before = watcher.board.steps(VICTIM)
    watcher.until_more(OTHERS, more)
    assert watcher.board.steps(VICTIM) == before, "it was not stopped"
    watcher.wake()
    watcher.until_more([VICTIM], 3)


@pytest.mark.parametrize(("strategy", "point"), GO_ON)
def test_the_others_go_on_while_a_rank_is_stopped(strategy, point, tmp_path):
    seen = run(strategy, point, signal.SIGSTOP, tmp_path, others_go_on)
    assert None not in seen


@pytest.mark.parametrize("point", MID_STEP)
def test_a_rank_stopped_in_a_swap_holds_nobody_up_and_no_step_is_lost_or_doubled(point, tmp_path):
    # Swaps keep the mean of all weights; each step is in it once, also if the log was cut while the rank was stopped.
    seen = watched(
        family.march_and_count, "ad-psgd", point, signal.SIGSTOP, tmp_path, lambda w: others_go_on(w, AFTER_A_CUT)
    )
    steps = [made for _, made in seen]
    assert all(counted == pytest.approx(steps) for counted, _ in seen)


@pytest.mark.parametrize(("strategy", "ahead"), WAIT)
def test_the_others_wait_while_a_rank_is_stopped(strategy, ahead, tmp_path):
    def others_wait(watcher: Watcher) -> None:
        time.sleep(STOPPED_S)  # what is observed is that nothing happens
        assert max(watcher.steps()) <= watcher.board.steps(VICTIM) + ahead, watcher.steps()
        watcher.wake()
        watcher.until_more([*range(WORLD)], 3)

    seen = run(strategy, BETWEEN_STEPS, signal.SIGSTOP, tmp_path, others_wait)
    assert None not in seen
    assert all(seen[rank].stats.waited_s > STOPPED_S / 2 for rank in OTHERS)


@pytest.mark.parametrize("point", [BETWEEN_STEPS, *MID_STEP])
@pytest.mark.parametrize("strategy", SURVIVE)
def test_the_others_go_on_without_a_rank_that_is_killed(strategy, point, tmp_path):
    seen = run(strategy, point, signal.SIGKILL, tmp_path, lambda watcher: watcher.until_more(OTHERS, MORE))
    assert [s is None for s in seen] == [rank == VICTIM for rank in range(WORLD)]
    assert all(s.stats.ranks[VICTIM].state == "dead" for s in seen if s is not None)
