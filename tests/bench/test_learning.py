"""Whether learning is measured rightly: distances, times to a target, verdicts, and what a kept run depends on."""

import json

import pytest
import torch

from bench.learning import __main__ as command
from bench.learning import cells, runs, sources, verdict
from bench.learning.page import BEGIN, END, put_into, tables
from bench.learning.runs import Job
from bench.learning.tasks import Sines, Stopped, Task, imbalance_of, schedule
from outpace.strategies import names, strategy
from outpace.workloads import Metric
from outpace.workloads.base import ACCURACY, LOSS

CELL = cells.cells()[0]


def run(end, begin=0.1, seconds=10.0, late=0.0):
    """A straight line from the untrained model's metric to the last one's."""
    middle = None if end is None else (begin + end) / 2
    curve = [[0.0, 0.0, begin], [0.5, seconds / 2, middle], [1.0, seconds, end]]
    return {"metric": end, "curve": curve, "seconds": seconds, "late_share": late}


def found(metric: Metric, **strategies):
    """The rows of one cell, two seeds each."""
    given = {
        Job(CELL, name.replace("_", "-"), seed): record
        for name, records in strategies.items()
        for seed, record in enumerate(records)
    }
    return verdict.rows(given, {CELL.workload: metric})


def row_of(rows, name):
    return next(row for row in rows if row["strategy"] == name)


def test_a_share_is_compared_in_points_and_a_loss_in_per_cent_and_better_is_positive():
    assert verdict.distance(0.95, 0.90, ACCURACY) == pytest.approx(5.0)
    assert verdict.distance(1.1, 1.0, LOSS) == pytest.approx(-10.0)


def test_a_strategy_that_is_as_good_and_twice_as_fast_is_said_to_be():
    rows = found(ACCURACY, allreduce=[run(0.9), run(0.9)], eager_solo=[run(0.9, seconds=5.0), run(0.892, seconds=5.0)])
    short = verdict.verdicts(rows)[1]
    assert row_of(rows, "eager-solo")["distance"] == pytest.approx(-0.4)
    assert (short["within"], short["diverged"]) == (1.0, [])
    assert row_of(rows, "allreduce")["target_s"] == pytest.approx(10 * (0.98 * 0.9 - 0.1) / 0.8)
    assert CELL.imbalance == "none"
    assert short["faster_balanced"] == pytest.approx(2.0, rel=0.02)
    assert short["faster"] is None


def test_what_never_reaches_the_target_is_never_there():
    rows = found(LOSS, allreduce=[run(1.0, 5.0)] * 2, wagma=[run(1.2, 5.0)] * 2)
    assert row_of(rows, "wagma")["target_s"] is None
    short = verdict.verdicts(rows)[1]
    assert (short["within"], short["faster_balanced"], short["never"]) == (0.0, 0.0, 1)


def test_a_strategy_with_fewer_seeds_is_compared_on_those_alone():
    rows = found(ACCURACY, allreduce=[run(0.9), run(0.5)], wagma=[run(0.8)])
    assert row_of(rows, "wagma")["distance"] == pytest.approx(-10.0)
    assert [short["seeds"] for short in verdict.verdicts(rows)] == [[2], [1]]


@pytest.mark.parametrize(
    ("end", "has_diverged"),
    [(None, True), (4.0, True), (9.0, True), (2.9, False), (0.9, False)],
)
def test_one_seed_that_made_less_than_half_of_the_way_is_a_divergence(end, has_diverged):
    rows = found(LOSS, allreduce=[run(1.0, 5.0)] * 2, sgp=[run(1.0, 5.0), run(end, 5.0)])
    assert row_of(rows, "sgp")["diverged"] == has_diverged
    assert verdict.verdicts(rows)[1]["diverged"] == ([CELL.name] if has_diverged else [])


def test_where_allreduce_diverges_nobody_else_is_blamed():
    rows = found(LOSS, allreduce=[run(None, 5.0), run(1.0, 5.0)], sgp=[run(None, 5.0)] * 2)
    assert verdict.verdicts(rows)[1]["diverged"] == []
    assert verdict.verdicts(rows)[1]["cells"] == 0


def test_the_cells_cover_what_they_should_and_have_names_of_their_own():
    chosen = cells.cells()
    assert 45 <= len(chosen) <= 100
    assert len({cell.name for cell in chosen}) == len(chosen)
    assert {cell.workload for cell in chosen} == set(cells.SIZES)
    assert {cell.optimizer for cell in chosen} == {"sgd", "adam", "adamw"}
    assert {"none", "jitter", "random", "slow", "lengths", "pareto", "stopped"} <= {cell.imbalance for cell in chosen}
    for cell in cells.picked(cells.QUICK):
        assert cell in chosen
    assert [cell.name for cell in cells.picked(["table-a"])] == [f"table-a/{rate:g}" for rate in cells.TABLE_A_RATES]


def test_the_network_of_table_a_is_the_one_described():
    task = Sines(seed=3)
    assert sum(parameter.numel() for parameter in task.model().parameters()) == 197_505
    first, again = (torch.cat([Task("sines", "sgd", 0.1, 3, other).batch(0, 0, 4)[0]]) for other in (False, True))
    assert first.shape == (32, 64)
    assert not torch.equal(first, again), "another order"


def test_shared_data_are_dealt_once_to_whoever_asks_first_and_again_to_whoever_asks_again():
    task = Task("digits", "sgd", 0.1, 0, False)
    fast = [task.batch(step, 1, 2) for step in range(3)]
    slow = task.batch(0, 0, 2)
    for step, (mine, _) in enumerate(fast):
        assert torch.equal(mine, task.inner.batch(step // 2, step % 2, 2)[0])
        assert torch.equal(mine, task.batch(step, 1, 2)[0])
    assert torch.equal(slow[0], task.inner.batch(1, 1, 2)[0])


def test_a_cosine_goes_down_to_its_floor_and_stays_there():
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = schedule("adamw", steps=4)(optimizer)
    rates = []
    for _ in range(7):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[0] == 1.0
    assert rates[2] == pytest.approx(0.55)
    assert rates[4:] == pytest.approx([0.1] * 3)


def test_the_imbalances_of_the_measure():
    assert [Stopped(at_step=2, rounds=5).compute_s(3, 4, step, 0.1) for step in (1, 2)] == pytest.approx([0.1, 0.6])
    task = Task("sequences", "adam", 0.02, 0, False)
    own = imbalance_of("own", task, 100)
    costs = [own.compute_s(rank, 8, step, 1.0) for step in range(task.steps_per_epoch) for rank in range(8)]
    assert sum(costs) / len(costs) == pytest.approx(1.0, rel=0.01)
    assert max(costs) > 3 * min(costs)


def test_a_kept_run_depends_on_its_strategy_and_on_what_is_simulated_alone():
    of_wagma, of_eager = (sources.modules_of(type(strategy(name))) for name in ("wagma", "eager-solo"))
    assert "outpace.strategies.wagma" in of_wagma
    assert "outpace.strategies.wagma" not in of_eager
    for module in (
        "outpace.protocol.ledger",
        "outpace.replica.replica",
        "outpace.workloads.digits",
        "bench.learning.tasks",
    ):
        assert module in set(of_wagma) & set(of_eager)
    assert not any(module.startswith(("outpace.engines.arena", "outpace.cli")) for module in of_wagma)
    jobs = [Job(CELL, "eager-solo", 0), Job(CELL, "eager-solo", 1), Job(CELL, "eager-solo:late=drop", 0)]
    assert len({job.key() for job in jobs}) == 3


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "KEPT", tmp_path / "kept")
    return tmp_path


def test_a_part_of_the_set_is_run_printed_and_kept(kept, monkeypatch, capsys):
    small = cells.Cell("digits/sgd/random/x1", "digits", "sgd", "random", 0.1, ranks=2, steps=6, points=3)
    monkeypatch.setattr(cells, "cells", lambda: [small])
    results = kept / "results.json"
    given = ["--only", "digits", "--strategies", "eager-s*", "--seeds", "1", "--jobs", "1", "--results", str(results)]
    assert command.main(given) == 0
    assert "| `eager-solo` | 1 |" in capsys.readouterr().out
    rows = json.loads(results.read_text())["rows"]
    assert [row["strategy"] for row in rows] == ["allreduce", "eager-solo", verdict.AGAIN]
    assert row_of(rows, "eager-solo")["late_share"] > 0

    monkeypatch.setattr(runs, "_make", None)  # nothing is left to be made
    assert command.main(given) == 0
    assert json.loads(results.read_text())["rows"] == rows


def test_the_tables_go_between_their_markers_and_nowhere_else(kept):
    rows = found(ACCURACY, allreduce=[run(0.9)] * 2, eager_solo=[run(0.8)] * 2)
    made = tables({"date": "2026-01-01", "torch": "2", "seeds": 2, "whole": False, "rows": rows})
    assert "**-10.0 points**" in made
    page = kept / "page.md"
    page.write_text(f"before\n{BEGIN}\nwhat was there\n{END}\nafter\n")
    put_into(page, made)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "what was there" not in text
    page.write_text("no place")
    with pytest.raises(SystemExit, match="has no place for the tables"):
        put_into(page, made)


def test_what_is_asked_for_must_exist(capsys):
    for given, words in ((["--only", "digit"], "no cell is called 'digit'"), (["--strategies", "x"], "no strategy")):
        with pytest.raises(SystemExit):
            command.main(given)
        assert words in capsys.readouterr().err
    assert set(cells.STRATEGIES) - {"auto"} <= set(names())
