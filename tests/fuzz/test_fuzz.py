"""The fuzz itself: fixed seeds hold every promise, runs replay exactly, and every mutant is caught.

A failing run prints its seed, the promise, the last events and the command that plays it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.fuzz import campaign
from tests.fuzz.campaign import failure, hunt, kept_seeds
from tests.fuzz.checkers import ALL
from tests.fuzz.mutants import MUTANTS, Mutant
from tests.fuzz.run import Outcome, Run

FRESH = range(75)  #: `make test-all` plays 2,000
BLOCK = 15
TWICE = range(20)
HUNTED = range(90)  #: a mutant has so many runs to be caught in


@cache
def outcome_of(seed: int) -> Outcome:
    return Run(seed).play()


def check(outcome: Outcome) -> None:
    if outcome.broken:
        pytest.fail(failure(outcome), pytrace=False)


@pytest.mark.parametrize("first", FRESH[::BLOCK])
def test_fresh_seeds_hold_every_promise(first: int) -> None:
    for seed in range(first, first + BLOCK):
        check(outcome_of(seed))


def test_seeds_that_once_failed_hold_every_promise() -> None:
    for seed in kept_seeds():
        check(outcome_of(seed))


def test_fresh_seeds_come_to_every_kind_of_fault() -> None:
    met = sum((outcome_of(seed).counts for seed in FRESH), Counter[str]())
    for point in ("depositing", "waiting", "applying", "writing a snapshot"):
        assert met[f"crashed while {point}"] > 3
    for kind in (
        "restarts",
        "pauses",
        "joins",
        "carried",
        "dropped",
        "voids",
        "refusals",
        "draws",
        "ended below quorum",
    ):
        assert met[kind] > 3, kind


# -- replay ------------------------------------------------------------------------------------------------------------


def test_a_seed_played_twice_gives_the_same_log_and_the_same_weights() -> None:
    for seed in TWICE:
        again = Run(seed).play()
        assert again == outcome_of(seed), f"seed {seed}"
    assert len({outcome_of(seed).digest for seed in TWICE}) == len(TWICE)
    assert len({outcome_of(seed).weights for seed in TWICE}) == len(TWICE)


def test_a_replay_in_another_process_is_the_very_same_run() -> None:
    seed = 7
    command = [sys.executable, "-m", "tests.fuzz", "--seed", str(seed), "-v"]
    root, surroundings = Path(__file__).parents[2], {**os.environ, "PYTHONHASHSEED": "123"}
    shown = subprocess.run(command, cwd=root, env=surroundings, capture_output=True, text=True, check=True).stdout
    expected = Run(seed, keep=None).play()
    assert f"log {expected.digest}, weights {expected.weights}" in shown
    assert expected.trace in shown


# -- mutants -----------------------------------------------------------------------------------------------------------


@cache
def caught(mutant: Mutant) -> Outcome | None:
    return hunt(mutant, HUNTED)[0]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught_by_the_checker_of_what_it_breaks(name: str) -> None:
    found = caught(MUTANTS[name])
    assert found is not None, f"{name} was not caught by {MUTANTS[name].caught_by.__name__} in {len(HUNTED)} runs"
    assert Run(found.seed).play().broken == [], "the sound system breaks the promise as well"


@pytest.mark.parametrize("name", MUTANTS)
def test_no_mutant_is_caught_where_nobody_checks(name: str) -> None:
    found = caught(MUTANTS[name])
    assert found is not None
    assert hunt(MUTANTS[name], [found.seed], checkers=())[0] is None


def test_every_checker_catches_a_mutant() -> None:
    assert {mutant.caught_by for mutant in MUTANTS.values()} == set(ALL)


# -- what a failing run shows ------------------------------------------------------------------------------------------


def test_a_failing_run_shows_its_seed_promise_events_and_replay_command() -> None:
    found = caught(MUTANTS["carried-twice"])
    assert found is not None
    shown = failure(found, "carried-twice")
    assert f"seed {found.seed} breaks a promise:\n" in shown
    assert "ExactlyOnce: " in shown
    assert f"-m tests.fuzz --seed {found.seed} --mutant carried-twice -v" in shown
    head, *lines = shown.split("\n\n")[0].splitlines()
    assert 0 < len(lines) <= 40
    column = head.index("rank 1")
    arrivals = [line for line in lines if line[column:].startswith("arrive")]
    assert arrivals
    assert all(line[13:column].isspace() for line in arrivals)


def test_a_failing_seed_is_kept_once_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "SEEDS", tmp_path / "seeds.txt")
    (tmp_path / "seeds.txt").write_text("# why\n")
    found = caught(MUTANTS["wrong-divisor"])
    assert found is not None
    campaign.keep(found)
    campaign.keep(found)
    assert list(kept_seeds()) == [found.seed]
    assert kept_seeds()[found.seed].startswith("Conservation: round")
