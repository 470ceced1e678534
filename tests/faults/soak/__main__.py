"""`python -m tests.faults.soak`: kills, stops and interrupts at random instants, for as long as one likes."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.soak import checks, forked
from tests.faults.soak.episode import Episode
from tests.faults.soak.interrupts import interrupted
from tests.faults.soak.plan import plan_of
from tests.faults.soak.tally import Tally
from tests.faults.soak.waits import Waits, waits_of

INTERRUPTS = 5  #: after each job that was disturbed


def main() -> int:
    """Returns 1 if anything was wrong."""
    options = _parser().parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}: python -m tests.faults.soak --seed {seed} --seconds {options.seconds:g} plans the same again")
    forked.import_everything()
    tally, directory = Tally(), Path(tempfile.mkdtemp(prefix="outpace-soak-"))
    try:
        _soak(tally, seed, options, directory)
    except KeyboardInterrupt:
        print("interrupted; so far:")
    finally:
        if tally.is_clean:
            shutil.rmtree(directory)
        else:
            print(f"what the jobs wrote that something was wrong with is in {directory}")
    print(tally.summary(), flush=True)
    return 0 if tally.is_clean else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to go on (default 600)")
    parser.add_argument("--seed", type=int, help="of all plans (default: a random one)")
    parser.add_argument("--only", type=int, metavar="JOB", help="disturbs this one job of the seed, and no other")
    parser.add_argument("--ranks", type=int, default=4, help="of each job (default 4)")
    parser.add_argument("--job-seconds", type=float, default=25.0, help="for which one job is disturbed (default 25)")
    return parser


def _soak(tally: Tally, seed: int, options: argparse.Namespace, directory: Path) -> None:
    if options.only is not None:
        _disturb(tally, seed, options.only, options, directory, time.monotonic() + options.job_seconds + 60)
        return
    until_s = tally.began_s + options.seconds
    number = 0
    while time.monotonic() < until_s:
        _disturb(tally, seed, number, options, directory, until_s)
        for each in range(INTERRUPTS):
            if time.monotonic() < until_s:
                _interrupt(tally, seed, number * INTERRUPTS + each, options.ranks, directory)
        print(tally.line, flush=True)
        number += 1


def _disturb(
    tally: Tally, seed: int, number: int, options: argparse.Namespace, directory: Path, until_s: float
) -> None:
    plan = plan_of(seed, number, options.ranks, options.job_seconds)
    own = directory / f"job-{number}"
    own.mkdir()
    episode = Episode(plan, own)
    try:
        episode.run(until_s)
    except KeyboardInterrupt:
        tally.add(episode, Waits())
        raise
    waits = waits_of(episode)
    tally.add(episode, waits)
    kills = sum(fault.kind == "kill" for fault in episode.faults)
    sums = checks.agreement(episode.job) + checks.exactly_once(episode.job)
    other = waits.held_up + ([] if episode.hang else checks.endings(episode.job, kills))
    left = checks.leftovers(episode.job)
    tally.wrong_sums += len(sums)
    tally.violations += len(other)
    tally.leftovers += len(left)
    tally.hangs += bool(episode.hang)
    wrong = [*sums, *other, *left, *([f"hang: {episode.hang}"] if episode.hang else [])]
    for what in wrong[:20]:
        print(f"job {number} ({plan}): {what}", flush=True)
    if wrong:
        print(f"again: python -m tests.faults.soak --seed {seed} --only {number} --ranks {options.ranks}", flush=True)
    else:
        shutil.rmtree(own)


def _interrupt(tally: Tally, seed: int, number: int, ranks: int, directory: Path) -> None:
    own = directory / f"interrupt-{number}"
    own.mkdir()
    wrong, left, hung = interrupted(seed, number, ranks, own)
    tally.interrupts += 1
    tally.leftovers += len(left)
    tally.hangs += hung
    tally.unclean += bool(wrong or left or hung)
    for what in [*wrong, *left, *(["hang"] if hung else [])]:
        print(f"interrupt {number} of seed {seed}: {what}", flush=True)
    if not (wrong or left or hung):
        shutil.rmtree(own)


if __name__ == "__main__":
    sys.exit(main())
