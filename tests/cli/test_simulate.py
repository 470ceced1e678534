import json
import os
import shlex
import signal
import subprocess
import sys

import pytest

from outpace.cli import main, simulate
from tests.support.processes import hear_ctrl_c

USUAL = ["allreduce", "eager-majority", "eager-solo", "auto"]
SMALL = ["--ranks", "4", "--steps", "8"]


def document(capsys, *options):
    """What `outpace simulate --json` prints."""
    assert main(["simulate", *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def report(capsys, *options):
    """What `outpace simulate` prints for people."""
    assert main(["simulate", *options]) == 0
    return capsys.readouterr().out


def by_name(found):
    return {run["strategy"]: run for run in found["strategies"]}


def complaint(capsys, *options):
    """The exit code and the lines on standard error of a command line that is wrong."""
    try:
        code = main(["simulate", *options])
    except SystemExit as end:
        code = end.code
    captured = capsys.readouterr()
    assert captured.out == ""
    return code, captured.err.splitlines()


# -- figures that can be computed by hand ------------------------------------------------------------------------------


def test_mean_waits_on_a_linear_skew_of_32_ranks(capsys):
    names = ["allreduce", "eager-majority:grace=0", "eager-solo:grace=0"]
    skew = shlex.split("--ranks 32 --steps 1 --imbalance skew:step_ms=1 --compute-ms 0 --network zero")
    runs = by_name(document(capsys, *skew, "--strategies", ",".join(names)))
    assert [runs[name]["waited_s"] for name in names] == pytest.approx([0.0155, 0.00375, 0.0], abs=1e-12)
    last = runs["allreduce"]["ranks"]
    assert [rank["waited_s"] for rank in last] == pytest.approx([(31 - rank) / 1000 for rank in range(32)])


def test_rates_with_one_rank_of_eight_twice_as_slow(capsys):
    slow = shlex.split("--imbalance slow --network zero --steps 75 --compute-ms 1000 --strategies eager-solo:grace=0")
    assert by_name(document(capsys, *slow))["eager-solo:grace=0"]["speedup"] == pytest.approx(1.0)
    found = document(capsys, *slow, "--data", "shared")
    runs = by_name(found)
    assert runs["allreduce"]["steps_per_s"] == pytest.approx(4.0)
    assert runs["eager-solo:grace=0"]["steps_per_s"] == pytest.approx(7.5)
    assert runs["eager-solo:grace=0"]["speedup"] == pytest.approx(1.875)
    assert runs["eager-solo:grace=0"]["share_of_ideal"] == pytest.approx(1.0)
    assert found["ideal_steps_per_s"] == pytest.approx(7.5)
    assert found["slowest"] == {"rank": 0, "compute_ms": 2000.0}
    assert runs["allreduce"]["slowest_share"] == found["fair_share"] == 1 / 8
    assert runs["eager-solo:grace=0"]["slowest_share"] == pytest.approx(1 / 15, rel=0.02)


def test_what_a_full_round_costs_on_the_network(capsys):
    assert document(capsys, *SMALL, "--network", "fixed:round_ms=7")["full_round_ms"] == 7.0


# -- the document ------------------------------------------------------------------------------------------------------


def test_json_has_every_figure_of_every_strategy(capsys):
    found = document(capsys, *SMALL, "--seed", "3")
    assert list(found) == [
        *("outpace", "command", "settings", "interrupted", "workload", "baseline", "ideal_steps_per_s"),
        *("full_round_ms", "mean_compute_ms", "slowest", "fair_share", "strategies"),
    ]
    assert found["command"] == f"outpace simulate {' '.join(SMALL)} --seed 3"
    assert found["settings"] == {
        "ranks": 4,
        "steps": 8,
        "compute_ms": 100.0,
        "imbalance": "random:k=1,delay_ms=200",
        "payload_mb": 25.0,
        "network": "ethernet",
        "apply_ms": 0.0,
        "data": "split",
        "microbatches": 8,
        "seed": 3,
    }
    assert found["interrupted"] is False
    assert [run["strategy"] for run in found["strategies"]] == USUAL
    for run in found["strategies"]:
        assert list(run) == [
            *("strategy", "steps_per_s", "speedup", "share_of_ideal", "seconds", "steps", "rounds", "waited_share"),
            *("waited_s", "late_share", "staleness", "dropped_share", "slowest_share", "digest", "ranks"),
        ]
        assert list(run["staleness"]) == ["p50", "p99", "max", "counts"]
        assert sum(run["staleness"]["counts"].values()) == 32
        assert [list(rank) for rank in run["ranks"]] == [
            ["rank", "waited_s", "share", "on_time", "late", "dropped"]
        ] * 4
        assert sum(rank["share"] for rank in run["ranks"]) == pytest.approx(1)
        assert sum(rank["on_time"] + rank["late"] for rank in run["ranks"]) == 32
        assert 0 <= run["waited_share"] < 1
        assert run["staleness"]["p50"] <= run["staleness"]["p99"] <= run["staleness"]["max"]


def test_the_command_in_the_report_repeats_the_run(capsys):
    options = [*SMALL, "--data", "shared", "--compute-ms", "12.3456789", "--strategy", "eager:quorum=2,late=drop"]
    found = document(capsys, *options, "--strategy", "eager-solo", "--network", "host")
    words = shlex.split(found["command"])
    assert words[:2] == ["outpace", "simulate"]
    again = document(capsys, *words[2:])
    assert again == found
    assert len({run["digest"] for run in found["strategies"]}) == 3


def test_what_takes_no_time_has_no_rate(capsys):
    run = document(capsys, *SMALL, "--compute-ms", "0", "--imbalance", "none", "--network", "zero")["strategies"][0]
    assert (run["steps_per_s"], run["speedup"], run["share_of_ideal"]) == (None, None, None)


def test_late_contributions_that_are_dropped_do_not_count(capsys):
    options = ["--strategy", "eager:quorum=2,late=drop", "--imbalance", "shifting-skew"]
    run = document(capsys, "--ranks", "8", "--steps", "20", *options)["strategies"][1]
    applied, dropped = (sum(rank[key] for rank in run["ranks"]) for key in ("on_time", "dropped"))
    assert run["dropped_share"] == pytest.approx(dropped / (applied + dropped))
    assert 0 < run["dropped_share"] < 1
    assert run["steps_per_s"] == pytest.approx(run["steps"] * (1 - run["dropped_share"]) / run["seconds"])


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 100, 120])
@pytest.mark.parametrize("more", [[], ["--workload", "hyperplane", "--ranks", "2", "--steps", "2"]])
def test_the_table_fits_and_says_what_was_simulated(capsys, monkeypatch, columns, more):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = report(capsys, *SMALL, "--imbalance", "slow:factor=3", *more)
    for text in (
        "slow:factor=3",
        "ethernet",
        "by every rank",
        "--data shared",
        "rank 0",
        "300 ms",
        "code that trains for real",
    ):
        assert text in " ".join(out.split())
    lines = out.splitlines()
    assert max(map(len, lines[:-1])) <= columns
    header = next(line for line in lines if "strategy" in line).split()
    expected = ["strategy", "steps/s", "speed-up", "ideal", "waited", "late", "stale", "dropped", "share"]
    assert header == [*expected, "loss"] if more else header == expected
    assert lines[-1].split()[:3] == ["repeat", "outpace", "simulate"]


def test_sixty_columns_do_not_shrink_names(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = report(capsys, *SMALL, "--strategies", "eager-majority,nonblocking-matcha").splitlines()
    assert max(map(len, lines[:-1])) <= 60
    for name in ("allreduce", "eager-majority", "nonblocking-matcha"):
        assert any(line.strip().startswith(f"{name} ") for line in lines), name


def test_quiet_prints_the_result_alone(capsys):
    assert main(["simulate", *SMALL, "--strategies", "eager-majority", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "eager-majority" in shown.out


def test_every_column_is_explained(capsys):
    lines = report(capsys, *SMALL).splitlines()
    columns = next(line for line in lines if "strategy" in line).split()[1:]
    assert set(columns) <= {line.split()[0] for line in lines if line and not line.startswith(" ")}


def test_the_baseline_runs_also_when_nobody_asks_for_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    out = report(capsys, *SMALL, "--strategies", "eager-solo")
    assert "allreduce (baseline)" in out
    assert out.splitlines()[-1].endswith("--strategies eager-solo")
    assert "(baseline)" not in report(capsys, *SMALL, "--strategies", "eager-solo,allreduce")


def test_strategies_may_be_given_between_commas_one_by_one_and_twice(capsys):
    options = ["--strategies", "eager-solo,allreduce", "--strategy", "eager:quorum=2,late=drop", "--strategy"]
    found = document(capsys, *SMALL, *options, "eager-solo")
    assert [run["strategy"] for run in found["strategies"]] == ["eager-solo", "allreduce", "eager:quorum=2,late=drop"]


def test_a_workload_is_trained_under_the_same_timing(capsys):
    options = ["--ranks", "2", "--steps", "4", "--imbalance", "exponential", "--strategy", "eager-majority"]
    timed = by_name(document(capsys, *options))["eager-majority"]
    trained = by_name(document(capsys, *options, "--workload", "hyperplane"))["eager-majority"]
    assert trained["held_out_loss"] < 90
    assert len(trained["weights"]) == 32
    for figure in ("steps_per_s", "waited_s", "staleness"):
        assert trained[figure] == timed[figure]


# -- on the way --------------------------------------------------------------------------------------------------------


def test_a_log_hears_when_a_strategy_begins_and_what_it_reached(capsys):
    assert main(["simulate", *SMALL, "--strategy", "allreduce", "--network", "zero", "--imbalance", "none"]) == 0
    assert capsys.readouterr().err.splitlines() == ["allreduce: simulating", "allreduce: 32 steps, 40 steps/s"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ranks", "0"], "argument --ranks: '0' must be a whole number, at least 1"),
        (["--data", "shared", "--steps", "1"], "with --data shared --steps 1 there is nothing to measure"),
        (["--data", "pool"], "argument --data: invalid choice: 'pool' (choose from"),
        (["--compute-ms", "nan"], "argument --compute-ms: 'nan' must be a number of milliseconds, 0 or more"),
        (["--compute-ms", "1e300"], "this would take centuries"),
        (["--apply-ms", "-1"], "argument --apply-ms: '-1' must be a number of milliseconds, 0 or more"),
        (["--payload-mb", "inf"], "argument --payload-mb: 'inf' must be a number of megabytes, 0 or more"),
        (["--imbalance", "rando"], "no imbalance is called 'rando'; did you mean random"),
        (["--imbalance", "random:k=9"], "k=9 ranks cannot be delayed in a world of 8"),
        (["--imbalance", "random:delay_ms=-5"], "delay_ms=-5 must be a finite number, 0 or more"),
        (["--imbalance", "random:delay_ms=nan"], "delay_ms=nan must be a finite number, 0 or more"),
        (["--imbalance", "slow:factor=1e308"], "this would take centuries"),
        (["--imbalance", "skew:step_ms=1e300"], "this would take centuries"),
        (["--apply-ms", "1e300"], "this would take centuries"),
        (["--network", "ethernett"], "no network is called 'ethernett'; did you mean ethernet"),
        (["--network", "ethernet:gbps=nan"], "gbps=nan must be a number, 0 or more"),
        (["--network", "fixed:round_ms=inf"], "round_ms=inf must be a number, 0 or more"),
        (["--network", "ethernet:bps=1"], "network 'ethernet' has no option 'bps'"),
        (["--strategies", "eager-sole"], "no strategy is called 'eager-sole'; did you mean eager-solo"),
        (["--strategy", "eager:quorum=9"], "quorum=9 is larger than the world of 8 ranks"),
        (["--strategies", ","], "at least one name is needed"),
        (["--workload", "hyperplan"], "no workload is called 'hyperplan'; did you mean hyperplane"),
        (["--workload", "hyperplane", "--ranks", "4000"], "can be split over 1 to 2048 ranks, not 4000"),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_line(capsys, options, message):
    code, lines = complaint(capsys, *options)
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith("outpace simulate: ")
    assert message in lines[0]


@pytest.mark.parametrize("columns", ["80", "120"])
def test_help_says_where_names_are_listed_and_fits_the_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit) as end:
        main(["simulate", "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    for text in ("simulated time", "LogGP", "one pool", "--data {split,shared,balanced,both}", "`outpace networks`"):
        assert text in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= int(columns)


def test_a_time_that_is_too_long_only_now_and_then_is_refused_as_well(capsys):
    code, lines = complaint(capsys, "--imbalance", "pauses:pause_ms=1e300", "--strategy", "allreduce")
    assert code == 2
    assert "this would take centuries" in lines[-1]


def test_ctrl_c_keeps_what_ran(capsys, monkeypatch):
    run = simulate.simulate_timing

    def interrupted(name, *arguments):
        if name == "eager-solo":
            raise KeyboardInterrupt
        return run(name, *arguments)

    monkeypatch.setattr(simulate, "simulate_timing", interrupted)
    assert main(["simulate", *SMALL]) == 130
    out = capsys.readouterr().out
    assert out.startswith("Interrupted: 2 of 4 strategies finished.\n")
    assert "eager-majority" in out


def test_ctrl_c_in_a_real_process():
    large = ["--ranks", "64", "--steps", "1000", "--strategies", "allreduce,eager-majority"]
    command = [sys.executable, "-m", "outpace", "simulate", *large, "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=hear_ctrl_c, **pipes)
    for line in process.stderr:
        if line == "eager-majority: simulating\n":
            break
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == ""
    found = json.loads(out)
    assert found["interrupted"] is True
    assert [run["strategy"] for run in found["strategies"]] == ["allreduce"]


# -- hosts -------------------------------------------------------------------------------------------------------------


def test_hosts_are_so_many_times_their_ranks_with_a_store_between_them(capsys):
    found = document(capsys, "--hosts", "3", "--steps", "5", "--network", "cluster:ranks_per_host=2")
    assert found["settings"]["ranks"] == 6
    for run in found["strategies"]:
        load = run["load"]
        assert load["store_ops"] == 2 * load["log_entries"]  # written and deleted by the first host, read from it
        assert load["store_ops_per_s"] == pytest.approx(load["store_ops"] / run["seconds"])
        assert load["store_ops_per_round"] >= 2
        assert 0 < load["store_busy_share"] < 1
        assert 0 < load["busiest_link_share"] < 1
        assert load["commit_ms"] > 0


def test_hosts_alone_are_a_cluster_of_eight_ranks_each(capsys):
    found = document(capsys, "--hosts", "2", "--steps", "3", "--strategy", "allreduce")
    assert (found["settings"]["ranks"], found["settings"]["network"]) == (16, "cluster")
    assert document(capsys, *shlex.split(found["command"])[2:]) == found


def test_one_host_has_no_store_to_report(capsys):
    found = document(capsys, "--hosts", "1", "--steps", "3", "--strategy", "allreduce")
    assert found["settings"]["ranks"] == 8
    assert "load" not in found["strategies"][0]


def test_the_stores_load_is_in_the_report(capsys):
    assert main(["simulate", "--hosts", "2", "--steps", "3", "--strategy", "allreduce"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("at least", "on 2 hosts", "us for an entry", "operations a round", "the busiest link"):
        assert words in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hosts", "0"], "'0' must be a whole number, at least 1"),
        (["--hosts", "2", "--ranks", "8"], "not allowed with argument"),
        (["--hosts", "2", "--network", "host"], "as in --network host:ranks_per_host=8"),
        (["--hosts", "2", "--network", "zero:gbps=1"], "as in --network zero:gbps=1,ranks_per_host=8"),
        (["--hosts", "100000"], "more than outpace simulates"),
    ],
)
def test_wrong_hosts_are_answered_in_one_line(capsys, options, words):
    code, lines = complaint(capsys, *options)
    assert code == 2
    assert len(lines) == 1
    assert words in lines[0]
