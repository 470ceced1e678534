"""Jobs that are interrupted soon after they were started: while ranks start, meet, train, or are stopped."""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.faults.soak import checks
from tests.faults.soak.episode import interrupt
from tests.faults.soak.job import Job
from tests.faults.soak.plan import Plan

LATEST_S = 1.2  #: when all ranks have long trained
END_S = 40.0
KINDS = ("once", "twice", "stopped", "term")
CODES = {"term": (143, -15)}  #: else 130; the latter from a launcher that had not begun to listen


def interrupted(seed: int, number: int, ranks: int, directory: Path) -> tuple[list[str], list[str], bool]:
    """What is wrong after one job was interrupted, what it left, and whether it hung."""
    draws = random.Random(f"{seed}/{number}/interrupt")
    kind = KINDS[number % len(KINDS)]
    plan = Plan(number, seed, ranks, "eager:quorum=majority,normalise=sum", 0, 0.0, True, 1.0, 0.0)
    job = Job(plan, directory)
    try:
        time.sleep(draws.random() * LATEST_S)
        interrupt(job, kind, draws)
        hung = not job.await_end(END_S)
    finally:
        job.kill()
    job.look()
    wrong = [] if hung or job.code in CODES.get(kind, (130,)) else [f"exit code {job.code}"]
    if "Traceback" in job.errors:
        wrong.append("a traceback")
    wrong += checks.agreement(job)
    return [f"{kind}: {what}" for what in wrong], checks.leftovers(job), hung
