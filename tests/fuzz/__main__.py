"""`python -m tests.fuzz`: random runs for so long, one run again, or a mutant that must be caught."""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.fuzz.campaign import Campaign, failure, hunt, keep, seeds_until
from tests.fuzz.mutants import MUTANTS
from tests.fuzz.plan import plan_of
from tests.fuzz.system import SOUND


def main() -> int:
    """Returns how many runs broke a promise, or mutants were not caught; at most 1."""
    options = _parser().parse_args()
    if options.seed is not None:
        return _replay(options.seed, options.mutant, options.verbose)
    first = random.SystemRandom().randrange(10**9) if options.first is None else options.first
    print(f"seeds from {first} on: --first {first} plays the same again", flush=True)
    if options.mutant:
        names = list(MUTANTS) if options.mutant == "all" else [options.mutant]
        return min(1, sum(_hunt(name, first, options) for name in names))
    return _fuzz(first, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on (default 60)")
    parser.add_argument("--runs", type=int, help="so many runs instead")
    parser.add_argument("--first", type=int, help="the first seed (default: a random one)")
    parser.add_argument("--seed", type=int, help="plays this one run, and nothing else")
    parser.add_argument("--mutant", choices=["all", *MUTANTS], help="a system that is broken on purpose")
    parser.add_argument("-v", "--verbose", action="store_true", help="prints the plan and all events")
    return parser


def _replay(seed: int, mutant: str | None, verbose: bool) -> int:
    campaign, began = Campaign(MUTANTS[mutant].system if mutant else SOUND), time.monotonic()
    outcome = campaign.play(seed, keep=None if verbose else 40)
    if verbose:
        print(plan_of(seed))
    if outcome.broken:
        print(failure(outcome, mutant))
    elif verbose:
        print(outcome.trace)
    print(f"seed {seed}: log {outcome.digest}, weights {outcome.weights}")
    print(campaign.summary(time.monotonic() - began))
    return min(1, len(outcome.broken))


def _fuzz(first: int, options: argparse.Namespace) -> int:
    campaign, began = Campaign(), time.monotonic()
    try:
        for seed in seeds_until(first, options.runs, options.seconds):
            outcome = campaign.play(seed)
            if outcome.broken:
                keep(outcome)
                print(failure(outcome), flush=True)
            elif options.verbose:
                print(f"seed {seed}: {dict(outcome.counts)}", flush=True)
    except KeyboardInterrupt:
        print("interrupted")
    print(campaign.summary(time.monotonic() - began))
    return min(1, campaign.totals["violations"])


def _hunt(name: str, first: int, options: argparse.Namespace) -> int:
    mutant, began = MUTANTS[name], time.monotonic()
    caught, runs = hunt(mutant, seeds_until(first, options.runs, options.seconds))
    took = f"{runs} runs, {time.monotonic() - began:.1f} s"
    if caught is None:
        print(f"{name}: NOT CAUGHT by {mutant.caught_by.__name__} ({took})", flush=True)
        return 1
    print(f"{name}: caught by {mutant.caught_by.__name__}, seed {caught.seed} ({took}). {mutant}", flush=True)
    if options.verbose:
        print(failure(caught, name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
