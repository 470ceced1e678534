"""How long a killed rank is missing under `outpace run`: `python -m bench.restarts [--kills 10] [--ranks 4]`.

Ranks are killed one after the other while they train. A replacement notes when its process began, when it had imported
everything and was about to join, and when its first contribution was taken in. What is left of the time since the kill
when its own start-up is taken away is outpace's: noticing, back-off, starting the process, joining, adopting, a step.
Also shown: the rounds per second of the others while it was missing, beside those while all were there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMPUTE_S = 0.020
QUIET_S = 2.0  #: between two kills, to see how fast all ranks are together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        show(measure(Path(directory), given.ranks, given.kills))


def measure(directory: Path, ranks: int, kills: int) -> list[dict[str, float]]:
    """A row for each kill."""
    command = [sys.executable, "-m", "outpace", "run", "-n", str(ranks), "--max-restarts", str(kills)]
    job = subprocess.Popen([*command, __file__, "--rank", str(directory)])
    rows, lives = [], [1] * ranks
    try:
        until(lambda: all(has(directory, rank, 1, "contributed") for rank in range(ranks)))
        for number in range(kills):
            victim = number % ranks
            rows.append(kill(directory, victim, lives[victim], observer=(victim + 1) % ranks, lives=lives))
            lives[victim] += 1
        (directory / "stop").touch()
        if job.wait(120):
            raise SystemExit(f"the run ended with exit code {job.returncode}")
    finally:
        job.kill()
        job.wait()
    return rows


def kill(directory: Path, victim: int, life: int, observer: int, lives: list[int]) -> dict[str, float]:
    """One kill, and what its replacement and another rank noted."""
    rate = rounds_per_s(directory, observer, lives[observer], QUIET_S)
    process, at_s = read(directory, victim, life, "began")["pid"], time.monotonic()
    os.kill(process, signal.SIGKILL)
    round_ = newest_round(directory, observer, lives[observer])
    until(lambda: has(directory, victim, life + 1, "contributed"))
    began, ready = (read(directory, victim, life + 1, what)["at"] for what in ("began", "ready"))
    joined, contributed = (read(directory, victim, life + 1, what)["at"] for what in ("joined", "contributed"))
    missing_s = contributed - at_s
    return {
        "missing_s": missing_s,
        "start_up_s": ready - began,
        "ours_s": missing_s - (ready - began),
        "until_begun_s": began - at_s,
        "joining_s": joined - ready,
        "rounds_per_s": rate,
        "rounds_per_s_missing": (newest_round(directory, observer, lives[observer]) - round_) / missing_s,
    }


def rounds_per_s(directory: Path, rank: int, life: int, seconds: float) -> float:
    before = newest_round(directory, rank, life)
    time.sleep(seconds)
    return (newest_round(directory, rank, life) - before) / seconds


def show(rows: list[dict[str, float]]) -> None:
    print(f"{len(rows)} kills, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; median, largest")
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"  {name:22} {statistics.median(values):8.3f} {max(values):8.3f}")


def until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("it never came to that")
        time.sleep(0.005)


def path_of(directory: Path, rank: int, life: int, what: str) -> Path:
    return directory / f"{rank}.{life}.{what}"


def has(directory: Path, rank: int, life: int, what: str) -> bool:
    return path_of(directory, rank, life, what).exists()


def read(directory: Path, rank: int, life: int, what: str) -> Any:
    return json.loads(path_of(directory, rank, life, what).read_text())


def newest_round(directory: Path, rank: int, life: int) -> int:
    return int(read(directory, rank, life, "round"))


# -- in each rank ------------------------------------------------------------------------------------------------------


def train(directory: Path) -> None:
    """Until there is a file called `stop`."""
    import torch

    import outpace

    rank, life = int(os.environ["RANK"]), int(os.environ["OUTPACE_LIFE"])

    def note(what: str, value: object) -> None:
        hidden = directory / f".{rank}.{life}.{what}"
        hidden.write_text(json.dumps(value))
        hidden.rename(path_of(directory, rank, life, what))

    weight = torch.nn.Parameter(torch.zeros(200_000))
    inner = torch.optim.SGD([weight], lr=0.01, momentum=0.9)
    note("began", {"pid": os.getpid(), "at": process_began_s()})
    note("ready", {"at": time.monotonic()})
    opt = outpace.DistributedOptimizer(inner, "eager-majority")
    note("joined", {"at": time.monotonic()})
    weight.grad = torch.ones_like(weight)
    contributed = False
    while not (directory / "stop").exists():
        time.sleep(COMPUTE_S)
        opt.step()
        note("round", opt.stats.round)
        if not contributed:
            note("contributed", {"at": time.monotonic()})
            contributed = True
    opt.finish()


def process_began_s() -> float:
    """When this process was made, on the clock of `time.monotonic`."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic() - (since_boot - ticks / os.sysconf("SC_CLK_TCK"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        train(Path(sys.argv[2]))
    else:
        main()
