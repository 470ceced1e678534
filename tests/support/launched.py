"""Scripts that are started as processes of their own: `python launched.py NAME ...`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

import outpace
from tests.support.processes import finding_tests
from tests.support.ranks import TIMEOUT_S, Counter, Report, digest, my_rank

STEPS = 120


def sleep_for_ever(directory: str) -> None:
    """Trains until it is ended from outside."""
    weight = torch.nn.Parameter(torch.zeros(10))
    opt = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), "eager-majority", timeout_s=TIMEOUT_S)
    weight.grad = torch.ones(10)
    for step in range(10**9):
        opt.step()
        if step == 20:
            Path(directory, f"{my_rank()}.pid").write_text(str(os.getpid()))


def launcher(directory: str) -> None:
    """A launcher to be interrupted or killed."""
    try:
        outpace.spawn(sleep_for_ever, 3, (directory,))
    except KeyboardInterrupt:
        sys.exit(130)


def count_alone(steps: int) -> dict[str, object]:
    """Contributes `steps` times as whatever rank the environment says."""
    report = Report(my_rank())
    counter = Counter(STEPS, "eager-solo", report)
    joined_at = counter.opt.stats.version
    for step in range(steps):
        time.sleep(0.002)
        counter.step(step)
    counter.opt.finish()
    rounds = {str(number): members for number, members in report.rounds.items()}
    return {"final": digest(counter.opt), "digests": report.digests, "rounds": rounds, "joined_at": joined_at}


def killed_and_restarted() -> dict[str, object] | None:
    """Rank 2 is killed after some steps; rank 0 then starts its replacement."""
    if my_rank() == 2:
        os.environ["OUTPACE_FAULT"] = "kill:applying:15"
    if my_rank() != 0:
        return count_alone(STEPS)
    report = Report(0)
    counter = Counter(STEPS, "eager-solo", report)
    replacement = None
    for step in range(STEPS):
        time.sleep(0.002)
        counter.step(step)
        if replacement is None and counter.opt.stats.ranks[2].state == "dead":
            replacement = start_rank(2)
    while replacement is None:  # a waiting rank notices deaths, one that never waits does not
        counter.opt._engine.log.report_deaths()
        if counter.opt.stats.ranks[2].state == "dead":
            replacement = start_rank(2)
    while counter.opt.stats.ranks[2].state == "dead":
        counter.opt._engine.look()
        time.sleep(0.01)  # the replacement imports torch; nobody may end before it has joined
    counter.opt.finish()
    told, _ = replacement.communicate(timeout=60)
    rounds = {str(number): members for number, members in report.rounds.items()}
    return {"final": digest(counter.opt), "digests": report.digests, "rounds": rounds, "other": json.loads(told)}


def start_rank(rank: int) -> subprocess.Popen[str]:
    env = finding_tests(RANK=str(rank), LOCAL_RANK=str(rank))
    command = [sys.executable, __file__, "count_alone", "10"]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    if name == "launcher":
        launcher(*arguments)
    else:
        print(json.dumps(count_alone(*map(int, arguments))))
