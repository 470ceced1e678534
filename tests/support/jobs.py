"""Jobs under `outpace run` that tests start, look into and disturb."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from tests.support.processes import exists, finding_tests, hear_ctrl_c, until
from tests.support.warm import Warm

SCRIPT = Path(__file__).with_name("supervised_rank.py")


class Job:
    """A launcher and its ranks. What they leave in the directory is described in `supervised_rank`."""

    def __init__(
        self,
        directory: Path,
        ranks: int,
        program: Sequence[str],
        options: Sequence[str] = (),
        is_warm: bool = False,
        backs_off: bool = True,
    ) -> None:
        self.directory, self.ranks = directory, ranks
        self.process: Any
        if is_warm:
            self.process = Warm(["run", "-n", str(ranks), *options, *program], directory, backs_off=backs_off)
            return
        command = [sys.executable, "-m", "outpace", "run", "-n", str(ranks), *options, *program]
        with (directory / "stderr").open("wb") as errors, (directory / "stdout").open("wb") as output:
            self.process = subprocess.Popen(
                command,
                env=finding_tests(),
                stdout=output,
                stderr=errors,
                start_new_session=True,
                preexec_fn=hear_ctrl_c,
            )

    def has(self, rank: int, what: str, life: int = 1) -> bool:
        """Whether that life of a rank has come to this."""
        assert self.process.poll() is None or what == "report", f"the launcher has ended:\n{self.errors}"
        return (self.directory / f"{rank}.{life}.{what}").exists()

    def read(self, rank: int, what: str, life: int = 1) -> Any:
        return json.loads((self.directory / f"{rank}.{life}.{what}").read_text())

    def await_all(self, what: str, life: int = 1) -> None:
        until(lambda: all(self.has(rank, what, life) for rank in range(self.ranks)), 120)

    def pid(self, rank: int, life: int = 1) -> int:
        return self.read(rank, "started", life)["pid"]

    def pids(self) -> list[int]:
        return [json.loads(path.read_text())["pid"] for path in self.directory.glob("*.started")]

    def kill(self, rank: int, life: int = 1, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid(rank, life), number)

    def stop_training(self) -> None:
        (self.directory / "stop").touch()

    def end(self, seconds: float = 120.0) -> int:
        """Waits for the launcher, and returns its exit code. Nothing of the job may be left."""
        code = self.process.wait(seconds)
        until(lambda: not any(exists(pid) for pid in self.pids()))
        return code

    @property
    def errors(self) -> str:
        return (self.directory / "stderr").read_text()

    def reports(self) -> dict[tuple[int, int], Any]:
        """What each life told that came to its end, by rank and life."""
        found = {}
        for path in sorted(self.directory.glob("*.report")):
            rank, life, _ = path.name.split(".")
            found[int(rank), int(life)] = json.loads(path.read_text())
        return found


def training(directory: Path, ranks: int, scenario: str, *options: str) -> AbstractContextManager[Job]:
    """A job of ranks that do what `supervised_rank` says. Whatever is left of it at the end is killed."""
    return running(directory, ranks, [str(SCRIPT), str(directory), scenario], *options)


def warm_training(directory: Path, ranks: int, scenario: str, *options: str) -> AbstractContextManager[Job]:
    """The same where it does not matter how a process begins: see `Warm`."""
    return running(directory, ranks, [str(SCRIPT), str(directory), scenario], *options, is_warm=True)


@contextmanager
def running(
    directory: Path, ranks: int, program: Sequence[str], *options: str, is_warm: bool = False, backs_off: bool = True
) -> Iterator[Job]:
    """The same for any program. One that is warm need not back off before it starts a rank again."""
    job = Job(directory, ranks, program, options, is_warm, backs_off)
    try:
        yield job
    finally:
        job.process.kill()
        job.process.wait()
