"""What the ranks of these tests do, and what they report of it. Runs in processes of its own.

Ranks write diaries, as in the soak, so that a test can watch them and hit them from outside.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

import outpace
from tests.faults.soak.diary import Diary, Life
from tests.support import features, ranks
from tests.support.ranks import TIMEOUT_S, digest, my_rank, world

MOST_STEPS = 4000  # that weights have room for


@dataclass
class Told:
    """What a rank says at its end, beside its diary."""

    report: ranks.Report
    steps: int = 0
    error: str = ""
    error_at_s: float = 0.0
    ticks: list[float] = field(default_factory=list)  #: of a thread beside the training
    window: tuple[float, float] = (0.0, 0.0)  #: when this rank was in trouble


def march(directory: str, strategy: str, sleep_s: list[float], in_training=None, **options) -> Told:
    """Counts steps until there is a file called `stop`, or until training fails."""
    rank = my_rank()
    diary = Diary(Path(directory), rank, 1)
    diary.note("began", os.getpid(), 0.0)
    told = Told(ranks.Report(rank))
    counter = ranks.Counter(MOST_STEPS, strategy, told.report, **options)
    diary.note("joined", 1)
    try:
        while not Path(directory, "stop").exists() and told.steps < MOST_STEPS:
            time.sleep(sleep_s[rank])
            if in_training is not None:
                in_training(told)
            diary.note("step")
            counter.step(told.steps)
            diary.note("stepped")
            told.steps += 1
        counter.opt.finish()
    except outpace.BelowQuorum as error:
        told.error, told.error_at_s = str(error), time.monotonic()
        return told
    told.report.final, told.report.stats = digest(counter.opt), counter.opt.stats
    told.report.counts = counter.counts()
    return told


def four_times_as_slow(directory: str, strategy: str, victim: int) -> Told:
    """The victim makes a step when the quickest of the others has made four, and they are never far ahead of that: if
    they went at its pace, nothing would go on, and however slow the machine is, the victim's work is not too late. Nor
    does anything stand still if one of the others falls behind: who is held up here waits for the victim alone."""
    lives = [Life(Path(directory), rank, 1) for rank in range(world())]

    def is_too_early(steps: int) -> bool:
        for life in lives:
            life.look()
        made = [len(life.steps) for life in lives]
        if my_rank() == victim:
            return max(made[:victim] + made[victim + 1 :]) < 4 * (steps + 1)
        return steps > 4 * made[victim] + 12

    def wait(told: Told) -> None:
        while is_too_early(told.steps) and not Path(directory, "stop").exists():
            time.sleep(0.001)

    return march(directory, strategy, [0.0] * world(), wait)


def hold_the_gil(directory: str, strategy: str, victim: int, at: int, seconds: float) -> Told:
    """The victim calls C code that keeps the interpreter's lock. A thread beside it shows that nothing else runs."""

    def hold(told: Told) -> None:
        if my_rank() != victim or told.steps != at:
            return
        is_over = threading.Event()

        def tick() -> None:
            while not is_over.wait(0.005):
                told.ticks.append(time.monotonic())

        beside = threading.Thread(target=tick)
        beside.start()
        began_s = time.monotonic()
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        told.window = (began_s, time.monotonic())
        is_over.set()
        beside.join()
        Path(directory, "stop").touch()

    return march(directory, strategy, [0.01] * world(), hold)


def not_finite(value: float, at: list[int], rank: int, steps: int) -> ranks.Report:
    """An ordinary loop at full quorum; at some steps one rank's gradient holds this value, or is zero everywhere."""
    report, made = ranks.Report(my_rank()), []
    model = ranks.small_model(my_rank())
    opt = features.plain(model, "allreduce", on_round=ranks.recorder(report, made))
    made.append(opt)
    for step, x in enumerate(features.batches(steps, my_rank())):
        opt.zero_grad()
        features.loss_of(model, x).backward()
        if my_rank() == rank and step in at:
            for parameter in model.parameters():
                parameter.grad.zero_()
            next(model.parameters()).grad[0, 0] = value
        opt.step()
    opt.finish()
    report.final, report.stats = digest(opt), opt.stats
    return report


def record_to(log_dir: str, steps: int) -> ranks.Report:
    """Counts, and records where there is no room. There are never as many rounds as would make a step too late."""
    report = ranks.Report(my_rank())
    counter = ranks.Counter(steps, f"eager-majority:max_staleness={world() * steps}", report, log_dir=log_dir)
    for step in range(steps):
        time.sleep(0.001)
        counter.step(step)
    counter.opt.finish()
    report.final, report.stats, report.counts = digest(counter.opt), counter.opt.stats, counter.counts()
    return report


def spin(directory: str) -> None:
    """A busy loop, for as long as there is no file called `stop`."""
    value = torch.ones(1000)
    deadline = time.monotonic() + TIMEOUT_S
    while not Path(directory, "stop").exists() and time.monotonic() < deadline:
        for _ in range(1000):
            value = value * 1.0
