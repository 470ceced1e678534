"""What ranks do in tests of faults between hosts, and who makes the faults. Ranks run in processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.support.family import Board
from tests.support.ranks import Counter, Report, digest, gone, lost, my_rank

TIMEOUT_S = 25.0  # a host may be silent for 2.5 s
PATIENCE_S = 90.0  # no measure of anything: a hang becomes an error
MOST_STEPS = 20_000  # that weights have room for: a slow machine needs long to start a host again


def count_until_ended(strategy: str, path: str, compute_s: float = 0.002, timeout_s: float = TIMEOUT_S) -> Report:
    """Counts contributions until the board says that it is enough. Reports when each step began and how long it took,
    and which contributions are in the weights."""
    rank, board = my_rank(), Board(path)
    report = Report(rank)
    counter = Counter(MOST_STEPS, strategy, report, timeout_s=timeout_s)
    steps: list[tuple[float, float]] = []
    board.enter(rank)
    while not board.is_ended:
        time.sleep(compute_s)
        began = time.monotonic()
        counter.step(board.steps(rank))
        steps.append((began, time.monotonic() - began))
        board.advance(rank)
    counter.opt.finish()
    report.final, report.stats, report.extra = digest(counter.opt), counter.opt.stats, steps
    report.counts = (counter.weight.detach() != 0).tolist()
    return report


class Driver:
    """Looks at the ranks from outside, does something to some of them, and says when it is enough."""

    def __init__(self, board: Board, world: int) -> None:
        self.board, self.world = board, world
        self.began = self.over = 0.0  #: when the trouble began, and when all who can are back

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Looks until it holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"not true after {PATIENCE_S:.0f} s: {what}; {self.steps()}"
            time.sleep(0.002)

    def until_more(self, who: Sequence[int], steps: int) -> None:
        """Each of these ranks has made so many more steps than now."""
        now = self.steps()
        self.until(lambda: all(self.board.steps(rank) >= now[rank] + steps for rank in who), f"{steps} more of {who}")

    def steps(self) -> list[int]:
        return [self.board.steps(rank) for rank in range(self.world)]

    def pids(self, ranks: Sequence[int]) -> list[int]:
        return [self.board.process(rank) for rank in ranks]

    @contextlib.contextmanager
    def stopped(self, pids: Sequence[int]) -> Iterator[None]:
        """These processes stand still for the block."""
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            self.until(lambda: all(map(lost, pids)), f"{pids} stand still")
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def kill(self, pids: Sequence[int]) -> None:
        """These processes are gone when it returns. All stand still before the first one is killed: an agent that sees
        its ranks die says that its host leaves, and the others would have nothing to find out."""
        with self.stopped(pids):
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        self.until(lambda: all(map(gone, pids)), f"{pids} are gone")


def agents_of(ranks: Sequence[int]) -> list[int]:
    """The agent of these ranks' host, and the one that would follow it."""
    parents = {int(pid): parent_of(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()}
    servers = [pid for pid, parent in parents.items() if parent in ranks and name_of(pid) == "outpace-forks"]
    agents = [pid for pid, parent in parents.items() if parent in servers and name_of(pid) == "outpace-agent"]
    return agents + [pid for pid, parent in parents.items() if parent in agents]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
