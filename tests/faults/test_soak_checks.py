"""What the soak's checks say of diaries that were made up: nothing of good ones, and each wrong by its name."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.faults.soak import checks
from tests.faults.soak.diary import Life, name_of

ROUNDS = {0: [[0, 1, 1], [1, 1, 1]], 1: [[0, 1, 2]], 2: [[1, 2, 1], [0, 1, 3]]}  # rank 1 was killed after its first
APPLIED = [[0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 2, 1], [1, 0, 0, 1], [1, 1, 0, 1]]


def diary(directory: Path, rank: int, life: int, rounds: dict, steps: int, end: dict | None, in_step=False) -> Life:
    lines = [["began", 0.0, 100 + rank, 0.0], ["ready", 0.1], ["joined", 0.2, life]]
    lines += [[what, 1.0] for _ in range(steps) for what in ("step", "stepped")]
    lines += [["step", 2.0]] if in_step else []
    lines += [["round", 3.0, number, members, checksum] for number, (members, checksum) in rounds.items()]
    lines += [["end", 4.0, end]] if end is not None else []
    (directory / name_of(rank, life)).write_text("".join(json.dumps(line) + "\n" for line in lines) + '["rou')
    found = Life(directory, rank, life)
    assert found.look()
    return found


def job(directory: Path, first=None, second=None, applied=APPLIED, dropped=(0, 0), checksum=9, killed_steps=1):
    """Rank 0 lived through, rank 1 has a second life. `first` and `second` change what these wrote of the rounds."""
    rounds = {number: (members, number) for number, members in ROUNDS.items()}
    end = {"checksum": 9, "applied": applied, "dropped": list(dropped), "version": 3}
    lives = {
        0: [diary(directory, 0, 1, rounds | (first or {}), 3, end)],
        1: [
            diary(directory, 1, 1, {0: rounds[0]}, killed_steps, None, in_step=True),
            diary(directory, 1, 2, {2: rounds[2]} | (second or {}), 1, end | {"checksum": checksum}),
        ],
    }
    return SimpleNamespace(lives=lives, all_lives=lambda: [life for each in lives.values() for life in each])


def wrong(found) -> str:
    return "; ".join(checks.agreement(found) + checks.exactly_once(found))


def test_nothing_is_wrong_with_a_good_job_whose_killed_rank_was_in_a_step(tmp_path):
    assert wrong(job(tmp_path)) == ""


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"second": {2: (ROUNDS[2], 7)}}, "rank 1, life 2 differs after round 2"),
        ({"second": {2: ([[1, 2, 1]], 2)}}, "rank 1, life 2 differs after round 2"),
        ({"checksum": 8}, "2 different weights at the end"),
        ({"first": {1: ([[0, 1, 2], [0, 1, 1]], 1)}}, "contribution (0, 1, 1) is in 2 rounds"),
        ({"applied": [*APPLIED[:-1], [1, 1, 0, 2]]}, "weights counted 2 of 1 at (1, 1, 0)"),
        ({"applied": APPLIED[:-1]}, "weights counted 0 of 1 at (1, 1, 0)"),
        ({"applied": [*APPLIED, [0, 0, 7, 1]]}, "weights counted 1 of 0 at (0, 0, 7)"),
        ({"killed_steps": 2}, "rank 1: 1 to 2 steps are missing, 0 recorded as dropped"),
        ({"dropped": (1, 0)}, "rank 0: 0 to 0 steps are missing, 1 recorded as dropped"),
    ],
)
def test_what_is_wrong_is_found(tmp_path, changed, said):
    assert said in wrong(job(tmp_path, **changed))
