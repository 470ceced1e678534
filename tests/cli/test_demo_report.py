import pytest

from outpace.cli.demo_report import Comparison, print_report
from outpace.workloads import Outcome, RankOutcome, Settings


def outcome(system, seconds):
    ranks = [RankOutcome(rank, 0.0, seconds, 1.0, 1.5, 0.25, 0) for rank in range(2)]
    return Outcome(system, tuple(ranks))


def comparison(**changes):
    outcomes = [outcome("ddp", 20.0), outcome("eager:quorum=1,grace=0", 8.0)]
    return Comparison(Settings(ranks=2), [o.system for o in outcomes], outcomes, **changes)


@pytest.mark.parametrize("columns", ["80", "100"])
def test_the_table_fits_and_says_what_was_measured(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    print_report(comparison())
    out = capsys.readouterr().out
    for text in ("torch DDP (Gloo)", "eager:quorum=1,grace=0", "20.0 s", "2.50x", "25%", "emulated by a sleep"):
        assert text in out
    lines = out.splitlines()
    assert lines[-1].endswith("outpace demo --ranks 2 --seed 0 --strategies ddp,eager:quorum=1,grace=0")
    assert max(map(len, lines[:-1])) <= int(columns)


def test_without_ddp_there_is_no_speed_up():
    alone = Comparison(Settings(), ["allreduce"], [outcome("allreduce", 1.0)])
    assert alone.speedup(alone.outcomes[0]) is None


def test_an_interrupted_run_says_how_far_it_came(capsys):
    partial = comparison(interrupted=True)
    partial.systems.append("eager-solo")
    print_report(partial)
    assert capsys.readouterr().out.startswith("Interrupted: 2 of 3 systems ran to their end.\n")


def test_nothing_but_the_interruption_is_reported_when_nothing_ran(capsys):
    print_report(Comparison(Settings(), ["ddp"], [], interrupted=True))
    assert capsys.readouterr().out == "Interrupted: 0 of 1 systems ran to their end.\n"
