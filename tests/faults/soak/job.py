"""One launcher and its ranks, seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.faults.soak import forked
from tests.faults.soak.diary import Life
from tests.faults.soak.plan import Plan
from tests.support.processes import python_path

RANK = Path(__file__).with_name("rank.py")
MAX_RESTARTS = 10_000


class Job:
    """Starts it. `lives` are all that have begun so far, in the order of each rank."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan, self.directory = plan, directory
        self.lives: dict[int, list[Life]] = {rank: [] for rank in range(plan.ranks)}
        self.code: int | None = None
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        options = ["-n", str(plan.ranks), "--max-restarts", str(MAX_RESTARTS), "--stop-within", "20"]
        program = [str(RANK), str(directory), plan.strategy, str(plan.padding)]
        environment = {"TMPDIR": str(self.temporary), "PYTHONPATH": python_path()}
        with (directory / "stdout").open("wb") as output, (directory / "stderr").open("wb") as errors:
            files = output.fileno(), errors.fileno()
            if plan.is_forked:
                self.pid = forked.launch([*options, *program], *files, environment)
            else:
                command = [sys.executable, "-m", "outpace", "run", *options, *program]
                self._process = subprocess.Popen(
                    command, stdout=output, stderr=errors, start_new_session=True, env={**os.environ, **environment}
                )
                self.pid = self._process.pid

    def look(self) -> None:
        """Reads what is new in the diaries, and whether the launcher has ended."""
        for rank, lives in self.lives.items():
            while True:
                following = Life(self.directory, rank, len(lives) + 1)
                if lives:
                    lives[-1].look()
                if not following.look():
                    break
                lives.append(following)
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)

    def latest(self, rank: int) -> Life | None:
        return self.lives[rank][-1] if self.lives[rank] else None

    def all_lives(self) -> list[Life]:
        return [life for lives in self.lives.values() for life in lives]

    def stop_training(self) -> None:
        (self.directory / "stop").touch()

    def signal(self, number: int) -> None:
        if self.code is None:
            os.kill(self.pid, number)

    def await_end(self, seconds: float) -> bool:
        """Whether the launcher has ended within so long."""
        deadline = time.monotonic() + seconds
        self.look()
        while self.code is None and time.monotonic() < deadline:
            time.sleep(0.005)
            self.look()
        return self.code is not None

    def kill(self) -> None:
        """Ends a launcher that does not end, and its ranks with it."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def errors(self) -> str:
        return (self.directory / "stderr").read_text(errors="replace")
