"""Following a job while it runs. Owns which files are looked at, and on which clock they are read.

    follower = Follower("runs/today")
    live = follower.poll()   # as often as you like: reads only what is new
    live.late_words          # 'rank 3 is late: 1.9 s into a step that usually takes 0.3 s'

The job is not asked and does not notice. It writes its lines every half a second, so what is known is as old as that.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from outpace.observe.live_figures import live_of
from outpace.observe.live_file import FollowedFile
from outpace.observe.live_rank import RankState
from outpace.observe.live_values import Live, RankLive
from outpace.observe.trace_life import Life
from outpace.observe.trace_reader import is_same_machine
from outpace.observe.trace_values import MOST_RANKS

__all__ = ["Follower", "Live", "RankLive"]


class Follower:
    """Follows the run in one directory. Nothing in it, not even a missing directory, makes it raise."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._files: dict[Path, FollowedFile] = {}

    def poll(self, now_ns: int | None = None) -> Live:
        """What is known now. `now_ns` is the monotonic clock of the ranks' host; by default it is looked up."""
        files = self._found()
        self._files = {path: self._files.get(path) or FollowedFile(path) for path in files}
        states = of_newest_run([file.read() for file in self._files.values()])
        return live_of(str(self.directory), states, self._now(states) if now_ns is None else now_ns)

    def _found(self) -> list[Path]:
        try:
            return sorted(self.directory.glob("rank-*.jsonl"))
        except OSError:
            return []

    def _now(self, states: dict[int, RankState]) -> int:
        """On the clock of the first rank's host, which need not be this one: runs may be on a shared disk."""
        now_ns, unix_ns = time.monotonic_ns(), time.time_ns()
        here = Life()
        here.host, here.clock_ns = socket.gethostname(), unix_ns - now_ns
        first = next((state.life for state in states.values() if state.life is not None), here)
        return now_ns if is_same_machine(first, here) else unix_ns - first.clock_ns


def of_newest_run(states: list[RankState]) -> dict[int, RankState]:
    """By rank, those of the newest run: an older one with more ranks leaves files behind."""
    known = [state for state in states if state.rank is not None and state.rank < MOST_RANKS]
    newest = max((s.life for s in known if s.life is not None), key=lambda life: life.unix_ns, default=None)
    ranks: dict[int, RankState] = {}
    for state in known:
        if state.life is None or newest is None or state.life.world == newest.world:
            ranks.setdefault(state.rank or 0, state)
    return dict(sorted(ranks.items()))
