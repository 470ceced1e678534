"""Many runs: their totals, what a failing one prints, and the file of seeds that failed. Owns that file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.fuzz.checkers import ALL, Checker
from tests.fuzz.mutants import Mutant
from tests.fuzz.run import Outcome, Run
from tests.fuzz.system import SOUND, System

SEEDS = Path(__file__).with_name("seeds.txt")
COMMAND = ".venv/bin/python -m tests.fuzz"
TOTALS = ("runs", "events", "rounds", "carried", "crashes", "restarts", "pauses", "joins", "voids", "refusals", "draws")
DETAILS = ("adoptions", "dropped", "ignored records", "ended below quorum")


class Campaign:
    """Plays seed after seed and adds up."""

    def __init__(self, system: System = SOUND) -> None:
        self.system = system
        self.totals: Counter[str] = Counter()

    def play(self, seed: int, checkers: Sequence[type[Checker]] = ALL, keep: int | None = 40) -> Outcome:
        """One run."""
        outcome = Run(seed, self.system, checkers, keep).play()
        self.totals.update(outcome.counts)
        self.totals["runs"] += 1
        self.totals["violations"] += bool(outcome.broken)
        return outcome

    def summary(self, seconds: float) -> str:
        """The totals in words."""
        simulated = f"{self.totals['simulated ms'] / 1000:,.0f} simulated s in {seconds:.1f} s"
        points = [name for name in sorted(self.totals) if name.startswith("crashed while")]
        lines = TOTALS, (*DETAILS, *points)
        counts = "\n".join(", ".join(f"{self.totals[name]:,} {name}" for name in names) for names in lines)
        return f"{counts}\n{simulated}: {self.totals['violations']} violations"


def failure(outcome: Outcome, mutant: str | None = None) -> str:
    """All that is known of a failing run, and how to see it again."""
    promises = "\n".join(f"  {name}: {words}" for name, words in outcome.broken)
    option = f" --mutant {mutant}" if mutant else ""
    return (
        f"{outcome.trace}\n\nseed {outcome.seed} breaks a promise:\n{promises}\n"
        f"Replay it with: {COMMAND} --seed {outcome.seed}{option} -v"
    )


def hunt(mutant: Mutant, seeds: Iterable[int], checkers: Sequence[type[Checker]] = ALL) -> tuple[Outcome | None, int]:
    """(the first run in which the mutant's own checker caught it, runs it took)."""
    campaign = Campaign(mutant.system)
    for seed in seeds:
        outcome = campaign.play(seed, checkers)
        if mutant.caught_by.__name__ in dict(outcome.broken):
            return outcome, campaign.totals["runs"]
    return None, campaign.totals["runs"]


def seeds_until(first: int, runs: int | None, seconds: float) -> Iterable[int]:
    """Seeds one after the other, so many, or for so long."""
    end = time.monotonic() + seconds
    seed = first
    while seed - first < runs if runs is not None else time.monotonic() < end:
        yield seed
        seed += 1


def kept_seeds() -> dict[int, str]:
    """Seeds that failed once, and why."""
    lines = (line.partition("#") for line in SEEDS.read_text().splitlines())
    return {int(seed): why.strip() for seed, _, why in lines if seed.strip()}


def keep(outcome: Outcome) -> None:
    """Puts a failing seed into the file of those that every `make test` replays."""
    if outcome.seed not in kept_seeds():
        name, words = outcome.broken[0]
        with SEEDS.open("a") as file:
            file.write(f"{outcome.seed}  # {name}: {words.strip().splitlines()[-1][:120]}\n")
