"""What each rank of a job under `outpace run` does: `outpace run -n 3 supervised_rank.py DIRECTORY SCENARIO ...`.

A life leaves what it has come to in the directory, as RANK.LIFE.WHAT; a file called `stop` there ends the training.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import outpace
from outpace.engines.arena.open import Rendezvous
from tests.support.ranks import TIMEOUT_S, Report, at_full_weight, digest, my_rank, recorder, world

LIFE = int(os.environ.get("OUTPACE_LIFE", "1"))
LIVES, STEPS = 4, 10_000  # at most, which weights have room for
STRATEGY = "eager:quorum=majority,normalise=sum"  # each contribution changes the weights by one
TRAINED = 10  #: steps after which a life says that it has trained


def note(what: str, value: object = None) -> None:
    directory = Path(sys.argv[1])
    path = directory / f"{my_rank()}.{LIFE}.{what}"
    hidden = directory / f".{path.name}"
    hidden.write_text(json.dumps(value))
    hidden.rename(path)  # whoever sees it can read all of it


class Counter:
    """Weights that count, in [rank, life, step], how often each contribution was applied."""

    def __init__(self, strategy: str, report: Report) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(world(), LIVES, STEPS))
        inner, made = torch.optim.SGD([self.weight], lr=1.0), []
        options = {"timeout_s": TIMEOUT_S, "on_round": recorder(report, made)}
        self.opt = outpace.DistributedOptimizer(inner, at_full_weight(strategy), **options)
        made.append(self.opt)

    def step(self, step: int) -> None:
        self.weight.grad = torch.zeros_like(self.weight)
        self.weight.grad[my_rank(), LIFE - 1, step] = 1.0
        self.opt.step()

    def applied(self) -> list[list[int]]:
        """The contributions in the weights, each with how often it was applied."""
        found = (-self.weight.detach()).nonzero().tolist()
        return [[*place, round(-float(self.weight.detach()[tuple(place)]))] for place in found]


def count(strategy: str = STRATEGY, in_training=lambda step: None) -> None:
    """Trains until there is a file called `stop`, and reports."""
    report = Report(my_rank())
    counter = Counter(strategy, report)
    note("joined", {"round": counter.opt.stats.round, "at": time.monotonic()})
    step = 0
    while not Path(sys.argv[1], "stop").exists():
        time.sleep(0.02)
        counter.step(step)
        step += 1
        if step == 1:
            note("contributed", time.monotonic())
        if step == TRAINED:
            note("trained")
        in_training(step)
    counter.opt.finish()
    tell = {
        "steps": step,
        "final": digest(counter.opt),
        "digests": report.digests,
        "rounds": report.rounds,
        "applied": counter.applied(),
        "dropped": [rank.dropped for rank in counter.opt.stats.ranks],
        "incarnations": [rank.incarnation for rank in counter.opt.stats.ranks],
    }
    note("report", tell)


def dies_before_joining() -> None:
    """Rank 1 raises, rank 2 is killed, and rank 0 when it has just announced the arena that nobody else has open."""
    if LIFE == 1 and my_rank() == 1:
        raise ValueError("a rank that fails before it has joined")
    if LIFE == 1 and my_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if LIFE == 1 and my_rank() == 0:
        announce = Rendezvous._replace

        def announce_and_die(meeting: Rendezvous, said: str, new: str) -> bool:
            announce(meeting, said, new)
            os.kill(os.getpid(), signal.SIGKILL)
            return True

        Rendezvous._replace = announce_and_die  # type: ignore[method-assign]
    count()


def always_raises() -> None:
    """Rank 1 raises in every life, when it has trained for a while."""

    def fail(step: int) -> None:
        if my_rank() == 1 and step == TRAINED:
            raise ValueError("this rank always fails")

    count(in_training=fail)


def exits_with_3() -> None:
    """Rank 1's first life ends in the middle of its training, with an exit code and without an exception to be seen."""

    def leave(step: int) -> None:
        if my_rank() == 1 and LIFE == 1 and step == TRAINED:
            sys.exit(3)

    count(in_training=leave)


def two_optimizers() -> None:
    """An actor and a critic in one module. Every life loads a checkpoint, as in scripts started again as a whole: for
    the first optimizer into the module alone, for the second as it is documented."""
    module = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    opts = [
        outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=2.0**-10), "eager-solo", module, timeout_s=TIMEOUT_S)
        for weight in module
    ]
    with torch.no_grad():
        for weight in module:
            weight.fill_(100.0)
    opts[1].load_state_dict(torch.optim.SGD([module[1]], lr=1.0).state_dict())
    step = 0
    while not Path(sys.argv[1], "stop").exists():
        time.sleep(0.02)
        for weight, opt in zip(module, opts, strict=True):
            weight.grad = torch.ones(3)
            opt.step()
        step += 1
        if step in (1, TRAINED):
            note("joined" if step == 1 else "trained", [weight.tolist()[0] for weight in module])
    for opt in opts:
        opt.finish()
    note("report", {"final": [digest(opt) for opt in opts]})


def forgets_to_finish() -> None:
    """A script that simply ends, with its optimizer long forgotten."""
    if my_rank() == 0:
        count()
        return
    counter = Counter(STRATEGY, Report(my_rank()))
    for step in range(TRAINED):
        counter.step(step)
    del counter
    gc.collect()
    note("trained")


def with_data_loaders() -> None:
    """Its workers are forked, hold what the rank has open, and would outlive it."""
    data = torch.utils.data.TensorDataset(torch.ones(10_000, 1))
    batches = iter(torch.utils.data.DataLoader(data, num_workers=2, multiprocessing_context="fork"))

    def load(step: int) -> None:
        next(batches)
        if step == 1:
            note("workers", [worker.pid for worker in batches._workers])

    count(in_training=load)


if __name__ == "__main__":
    note("started", {"pid": os.getpid(), "environment": dict(os.environ), "at": time.monotonic()})
    globals()[sys.argv[2]](*sys.argv[3:])
