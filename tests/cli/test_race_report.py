"""The table at the end of a race, in eighty columns."""

from dataclasses import replace

import pytest
from rich.console import Console

from outpace.cli.race import print_report, table
from outpace.race.result import Attempt, Entry, Point, Race, RankResult, Settings
from outpace.workloads.base import ACCURACY

RANK = RankResult(0, 10, 50.0, 10.0, 9.0, 1.0, on_time=10, share=1.0)
GOOD = Attempt(0, "01-ddp", 10.0, (Point(0.0, 0, 2.0, 0.1), Point(10.0, 1, 0.5, 0.9)), (), ((0, 10),), (RANK,))
BAD = Attempt(0, "02-x", error="rank 1 raised: ValueError: a bad day, " + "and a long story about it " * 6)
RACE = Race(
    Settings(ranks=1),
    "outpace race --seed 0",
    ACCURACY,
    (Entry("ddp", "torch DDP", (GOOD,)), Entry("eager-majority:quorum=3", "eager-majority:quorum=3", (BAD,))),
)


def lines_of(renderable, width=80):
    console = Console(width=width)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get().splitlines()


@pytest.mark.parametrize(
    ("settings", "imbalance"),
    [
        ({}, "none"),
        ({"imbalance": "random:k=1"}, "random:k=1"),
        ({"workload": "sequences:stride=4"}, "lengths"),
        ({"workload": "sequences", "data": "balanced"}, "none"),
        ({"workload": "rollouts", "imbalance": "slow"}, "roll-outs and slow"),
        ({"script": "train.py"}, "the script's own"),
    ],
)
def test_the_title_names_what_is_uneven_also_by_nature(settings, imbalance):
    title = lines_of(table(replace(RACE, settings=Settings(ranks=1, compute_ms=0, **settings))))[0]
    assert title.strip().endswith(f"1 rank, imbalance {imbalance}")


def test_sixty_columns_do_not_shrink_names():
    lines = lines_of(table(RACE), width=60)
    assert max(map(len, lines)) <= 60
    assert any(line.startswith(" torch DDP ") for line in lines)


def test_a_system_that_failed_does_not_spoil_the_table_of_the_others():
    ddp = next(line for line in lines_of(table(RACE)) if "torch DDP" in line)
    assert ddp.split() == ["torch", "DDP", "90.0%", "10.0", "s", "10.0", "s", "1.00x", "1.0", "s", "0%", "100.0%"]


def test_what_went_wrong_is_told_whole_below_the_table(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    print_report(RACE, tmp_path / "report.html")
    out = capsys.readouterr().out
    assert " ".join(out.split()).count("and a long story about it") >= 6
    assert "repeat     outpace race --seed 0" in out
