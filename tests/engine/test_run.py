"""`outpace run`: a rank that dies is restarted and rejoins; nothing is lost, doubled or left behind."""

import os
import signal
import stat
import subprocess
import sys
from collections import Counter

import pytest

from tests.support.jobs import SCRIPT, running, training, warm_training
from tests.support.processes import exists, python_path, until


def agree(job) -> None:
    """All lives that came to the end have equal weights, and had them after every round that they both applied."""
    reports = job.reports()
    assert {rank for rank, _ in reports} == set(range(job.ranks)), job.errors
    seen: dict[str, str] = {}
    for who, report in reports.items():
        for number, found in report["digests"].items():
            assert seen.setdefault(number, found) == found, f"{who} differs after round {number}"
    assert len({report["final"] for report in reports.values()}) == 1


def assert_exactly_once(job) -> None:
    """Weights hold each contribution of a finished life once, and of a killed one all up to the last that arrived."""
    reports = job.reports()
    rounds: dict[str, list] = {}
    for report in reports.values():
        for number, members in report["rounds"].items():
            assert rounds.setdefault(number, members) == members
    given = [tuple(c) for members in rounds.values() for c in members]
    assert max(Counter(given).values()) == 1
    any_report = next(iter(reports.values()))
    assert {times for *_, times in any_report["applied"]} == {1}
    assert len(any_report["applied"]) == len(given), "weights and records differ"
    dropped = sum(any_report["dropped"])
    missing = 0
    for rank, incarnation in {(rank, incarnation) for rank, incarnation, _ in given}:
        steps = {step for r, i, step in given if (r, i) == (rank, incarnation)}
        life = [report["steps"] for (r, _), report in reports.items() if r == rank]
        last = life[0] if incarnation == any_report["incarnations"][rank] else max(steps)
        missing += last - len(steps)
    assert missing <= dropped


def test_ranks_that_are_killed_again_and_again_come_back_and_nothing_is_lost_or_doubled(tmp_path):
    with warm_training(tmp_path, 3, "count") as job:
        job.await_all("trained")
        lives = dict.fromkeys(range(3), 1)
        for victims in ([0, 2], [0]):  # rank 1 stays, who has seen all rounds
            for rank in victims:
                job.kill(rank, lives[rank])
                lives[rank] += 1
            until(lambda lives=lives: all(job.has(rank, "trained", life) for rank, life in lives.items()), 120)
        job.kill(2, lives[2])
        lives[2] += 1
        job.stop_training()  # the others finish before the replacement has begun, and wait for it
        assert job.end() == 0, job.errors
        agree(job)
        assert_exactly_once(job)
        assert set(job.reports()) == set(lives.items())
        for rank, life in lives.items():
            assert (job.read(rank, "joined", life)["round"] > 0) == (life > 1), "it began anew"
        assert job.reports()[1, 1]["incarnations"] == [lives[rank] for rank in range(3)]
        assert "rank 0 ended with signal SIGKILL; it will be restarted in 0.1 s (1 of 10)" in job.errors
        assert "rank 0 ended with signal SIGKILL; it will be restarted in 0.2 s (2 of 10)" in job.errors


def test_ranks_that_die_before_they_have_joined_are_started_again_and_all_go_on(tmp_path):
    with warm_training(tmp_path, 3, "dies_before_joining") as job:
        job.await_all("trained", life=2)
        job.stop_training()
        assert job.end() == 0, job.errors
        agree(job)
        assert_exactly_once(job)


def test_a_rank_comes_back_to_all_its_optimizers_and_not_to_an_old_checkpoint(tmp_path):
    with warm_training(tmp_path, 2, "two_optimizers") as job:
        job.await_all("trained")
        job.kill(0)
        until(lambda: job.has(0, "trained", 2), 120)
        job.stop_training()
        assert job.end() == 0, job.errors
        first, second = job.reports().values()
        assert first["final"] == second["final"]
        assert min(job.read(0, "joined", 1)) > 90.0, "what was loaded was lost"
        for before, after in zip(job.read(0, "trained", 1), job.read(0, "joined", 2), strict=True):
            assert after <= before, "it went back to the checkpoint"
        assert "this rank has taken over theirs" in job.errors


def test_a_rank_that_never_called_finish_has_left_and_is_not_started_again(tmp_path):
    with training(tmp_path, 2, "forgets_to_finish") as job:
        job.await_all("trained")
        until(lambda: not exists(job.pid(1)), 120)
        job.stop_training()
        assert job.end() == 0, job.errors
        assert not list(tmp_path.glob("*.2.started"))
        (said,) = [line for line in job.errors.splitlines() if "without optimizer.finish()" in line]
        assert said.startswith("[rank 1 - round ")
        assert "leaves behind: " in said
        assert "1 other ranks that are still training ([0])" in said


def test_a_rank_that_exits_with_a_code_in_the_middle_of_its_training_is_started_again(tmp_path):
    with training(tmp_path, 2, "exits_with_3") as job:
        until(lambda: job.has(1, "trained", 2), 120)
        job.stop_training()
        assert job.end() == 0, job.errors
        agree(job)
        assert set(job.reports()) == {(0, 1), (1, 2)}
        assert "rank 1 ended with exit code 3; it will be restarted" in job.errors


def test_a_rank_is_refused_while_another_process_of_the_same_rank_is_only_stopped(tmp_path):
    with warm_training(tmp_path, 2, "count") as job:
        job.await_all("trained")
        job.kill(1, number=signal.SIGSTOP)
        environment = {**job.read(1, "started")["environment"], "OUTPACE_LIFE": "9", "PYTHONPATH": python_path()}
        command = [sys.executable, str(SCRIPT), str(tmp_path), "count"]
        second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert second.returncode == 1
        assert f"rank 1 is still alive as process {job.pid(1)}, which may wake up and write" in second.stderr
        job.kill(1, number=signal.SIGCONT)
        job.stop_training()
        assert job.end() == 0, job.errors
        agree(job)
        assert_exactly_once(job)


def test_what_could_still_wake_up_of_a_dead_rank_is_killed_before_its_replacement_is_started(tmp_path):
    wrapper = tmp_path / "wrapper.sh"
    wrapper.write_text(f'#!/bin/sh\necho $$ > {tmp_path}/$RANK.$OUTPACE_LIFE.wrapper\n"$@"\nexit $?\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    program = [str(wrapper), sys.executable, str(SCRIPT), str(tmp_path), "count"]
    with running(tmp_path, 2, program, "--no-python") as job:
        job.await_all("trained")
        job.kill(1, number=signal.SIGSTOP)
        os.kill(int((tmp_path / "1.1.wrapper").read_text()), signal.SIGKILL)
        until(lambda: (tmp_path / "1.2.wrapper").exists(), 120)
        assert not exists(job.pid(1, 1)), "the stopped process was there when its replacement began"
        until(lambda: job.has(1, "trained", 2), 120)
        job.stop_training()
        assert job.end() == 0, job.errors
        agree(job)
        assert_exactly_once(job)


def test_workers_of_a_killed_rank_neither_hide_its_death_nor_outlive_it(tmp_path):
    with warm_training(tmp_path, 2, "with_data_loaders") as job:
        job.await_all("trained")
        workers = job.read(1, "workers")
        assert all(map(exists, workers))
        job.kill(1)
        until(lambda: job.has(1, "started", 2), 60)
        assert not any(map(exists, workers))
        until(lambda: job.has(1, "trained", 2), 120)
        job.stop_training()
        assert job.end() == 0, job.errors
        agree(job)


def test_a_rank_that_fails_again_and_again_ends_the_run_with_its_own_traceback_last(tmp_path):
    with warm_training(tmp_path, 2, "always_raises", "--max-restarts", "1") as job:
        assert job.end() == 1
        assert len(list(tmp_path.glob("1.*.started"))) == 2
        last = job.errors.rpartition("outpace run: ")[2]
        assert last.startswith("rank 1 ended with exit code 1: it used up its restart limit (1 within 10 minutes).")
        assert "Traceback (most recent call last):" in last
        assert last.endswith("ValueError: this rank always fails\n")


def test_fewer_ranks_than_min_ranks_end_the_run_with_below_quorum(tmp_path):
    with warm_training(tmp_path, 3, "count", "--min-ranks", "3") as job:
        job.await_all("trained")
        job.kill(0)
        assert job.end(60) == 1
        assert not job.reports()
        last = job.errors.strip().splitlines()[-1]
        assert last.startswith("outpace.errors.BelowQuorum: [rank ")
        assert "ranks [0] died and 2 of 3 are left, fewer than min_ranks=3" in last


def test_when_no_rank_is_left_nothing_begins_anew(tmp_path):
    with warm_training(tmp_path, 2, "count") as job:
        job.await_all("trained")
        for rank in (0, 1):
            job.kill(rank, number=signal.SIGSTOP)  # so that both die before either is started again
        for rank in (0, 1):
            job.kill(rank)
        assert job.end(60) == 1
        assert "BelowQuorum: no rank is left that has the weights" in job.errors


@pytest.mark.parametrize("code", ["raise ValueError('the script is wrong')", "import sys; sys.exit(3)"])
def test_a_script_that_fails_on_every_rank_before_training_is_not_tried_for_long(tmp_path, code):
    script = tmp_path / "wrong.py"
    script.write_text(f"{code}\n")
    with running(tmp_path, 3, [str(script)]) as job:
        assert job.end(60) == 1
        assert "every rank failed before training began" in job.errors
        if "raise" in code:
            assert job.errors.endswith("ValueError: the script is wrong\n")
