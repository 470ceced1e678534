"""One pool of data for all ranks: each sample is trained once in an epoch, counted through the gradients."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

import outpace
from tests.support import drawing, host_faults, hosts_by_hand
from tests.support.family import Board
from tests.support.jobs import running
from tests.support.launches import in_one_launch

SAMPLES, EPOCHS = 203, 2
CASES = {
    "samples": (SAMPLES, EPOCHS, "samples", 0),
    "batches": (SAMPLES, EPOCHS, "batches", 0),
    "accumulated": (SAMPLES, EPOCHS, "batches", 0, 3),
    "fewer batches than ranks": (6, EPOCHS, "batches", 0),
}
PREFETCHED = {"prefetched": (SAMPLES, EPOCHS, "samples", 1), "prefetched batches": (SAMPLES, EPOCHS, "batches", 2)}


def check_each_once(found: dict) -> None:
    for name, ranks in found.items():
        assert [rank["times"] for rank in ranks] == [[1]] * len(ranks), name
        drawn = [(epoch, sample) for rank in ranks for epoch, batch in rank["drawn"] for sample in batch]
        assert len(drawn) == len(set(drawn)), name


def check_same_times(reports: Iterable[dict]) -> None:
    """Each sample was trained once in each epoch that any rank has begun."""
    reports = list(reports)
    epochs = max(report["epochs"] for report in reports)
    assert epochs > 1, "kills did not fall into several epochs"
    assert [report["times"] for report in reports] == [[epochs]] * len(reports)


@pytest.mark.parametrize("ranks", [1, 3, 8, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (2, 5))])
def test_each_sample_is_trained_once_in_an_epoch(ranks):
    check_each_once(in_one_launch(drawing.draw_all, ranks, CASES | (PREFETCHED if ranks < 5 else {})))


@pytest.mark.parametrize(
    ("ranks", "case"), [(2, "accumulated"), (3, "prefetched batches"), (5, "samples"), (8, "batches")]
)
def test_each_sample_is_trained_once_between_hosts(ranks, case):
    cases = {case: (CASES | PREFETCHED)[case]}
    check_each_once(in_one_launch(drawing.draw_all, ranks, cases, hosts=2))


def test_a_rank_with_other_data_learns_what_differs_and_draws_none_of_it():
    cases = {"size": ([60, 64], [0, 0]), "seed": ([60, 60], [0, 1])}
    found = in_one_launch(drawing.draw_other_data, 2, cases)
    assert [said[0] for said in found.values()] == ["", ""]
    assert "[rank 1] the other ranks draw from other data: its epoch has 16 items, and theirs 15" in found["size"][1]
    assert "as many items, but not in the same order. Here: 60 samples, shuffle=True, seed=1" in found["seed"][1]


def test_another_number_of_ranks_goes_on_in_the_middle_of_an_epoch():
    state, drawn = None, []
    for ranks, batches in ((3, 5), (2, 7), (4, 1000)):
        found = outpace.spawn(drawing.resume, ranks, (SAMPLES, state, batches))
        assert all(rank["state"] == found[0]["state"] for rank in found), "every rank's checkpoint is the same"
        state = found[0]["state"]
        drawn += [sample for rank in found for sample in rank["drawn"]]
    assert sorted(drawn) == list(range(SAMPLES))
    assert state["left"] == {0: []}


def test_a_rank_that_comes_late_can_begin_with_the_epoch_that_the_others_are_in():
    first, late = outpace.spawn(drawing.begin_late, 2, (60, 3))
    assert (first["begun"], late["begun"]) == ([0, 1, 2], [2])
    assert first["times"] == late["times"] == [1]


@pytest.mark.parametrize("kills", [2, pytest.param(17, marks=pytest.mark.long)])  # of each of three ranks
def test_through_kills_and_restarts_nothing_is_lost_or_trained_twice(kills: int, tmp_path: Path):
    ranks = 4
    driver = host_faults.Driver(Board(tmp_path / "board"), ranks)
    program = [drawing.__file__, str(tmp_path), *map(str, (SAMPLES, kills))]
    with running(tmp_path, ranks, program, "--max-restarts", "1000", is_warm=True, backs_off=False) as job:
        for rank in range(1, ranks):
            for life in range(1, kills + 2):
                driver.until(partial(job.has, rank, "started", life), f"rank {rank} lives for the {life}. time")
        driver.until_more(range(ranks), 20)
        driver.board.end()
        code = job.end()
    reports = job.reports()
    assert code == 0, job.errors
    assert set(reports) == {(0, 1), *((rank, kills + 1) for rank in range(1, ranks))}, "not every life ended as planned"
    check_same_times(reports.values())


@pytest.mark.parametrize("kills", [pytest.param(25, marks=pytest.mark.long)])  # of a host and its two ranks
def test_through_hosts_that_are_killed_and_come_back_nothing_is_lost_or_trained_twice(kills: int, tmp_path: Path):
    ranks, hosts, draw = 4, 2, random.Random(kills)
    board = tmp_path / "board"
    driver = host_faults.Driver(Board(board), ranks)
    env, arguments = {"OUTPACE_TOKEN": "known to all hosts"}, (SAMPLES, str(board), host_faults.TIMEOUT_S)
    with hosts_by_hand.Ranks(tmp_path, ranks, hosts, env, drawing.draw_until_ended, *arguments) as job:
        for _ in range(kills):
            driver.until_more(range(ranks), draw.randrange(1, 20))
            gone = draw.choice(([0, 1], [2, 3]))
            driver.kill(driver.pids(gone) + host_faults.agents_of(driver.pids(gone)))
            job.reap(gone)
            for rank in gone:
                job.start(rank)
        driver.until_more(range(ranks), 20)
        driver.board.end()
        reports = job.answers()
    check_same_times(reports)
