"""A host of which everything was killed and that is started again: it takes up where the others are, and they go on."""

import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import family, host_faults, hosts_by_hand
from tests.support.agreement import agree, contributions
from tests.support.family import Board
from tests.support.host_faults import Driver, agents_of
from tests.support.processes import finding_tests

WARM_UP, MORE = 30, 40
RANKS, HOSTS = 4, 2
TOKEN = {"OUTPACE_TOKEN": "known to all hosts"}


def kill(job: hosts_by_hand.Ranks, driver: Driver, gone: list[int]) -> None:
    driver.kill(driver.pids(gone) + agents_of(driver.pids(gone)))
    job.reap(gone)


def restart(job: hosts_by_hand.Ranks, driver: Driver, gone: list[int], meanwhile: Sequence[int] = ()) -> None:
    """Kills hosts, and starts them again when the others have gone on for a while. Returns when all train."""
    kill(job, driver, gone)
    driver.until_more(meanwhile, MORE)
    for rank in gone:
        job.start(rank)
    driver.until_more(range(RANKS), MORE)


@pytest.fixture
def driver(tmp_path) -> Driver:
    return Driver(Board(tmp_path / "board"), RANKS)


def counting(tmp_path, strategy: str, env=TOKEN) -> hosts_by_hand.Ranks:
    args = (strategy, str(tmp_path / "board"), 0.02)
    return hosts_by_hand.Ranks(tmp_path, RANKS, HOSTS, env, host_faults.count_until_ended, *args)


@pytest.mark.parametrize(
    ("strategy", "gone", "times"),
    [
        ("eager-solo", [2, 3], 2),
        ("eager:quorum=full,min_ranks=1", [0, 1], 1),  # the host whose agent is the first to answer others
    ],
)
def test_it_takes_up_the_others_rounds_and_contributes(strategy, gone, times, tmp_path, driver):
    others = [rank for rank in range(RANKS) if rank not in gone]
    with counting(tmp_path, strategy) as job:
        driver.until(lambda: min(driver.steps()) >= WARM_UP, "all have begun")
        for _ in range(times):
            restart(job, driver, gone, meanwhile=others)
        driver.board.end()
        reports = job.answers()
    agree(reports)
    given = contributions(reports)
    assert max(Counter(given).values()) == 1
    assert {incarnation for rank, incarnation, _ in given if rank in others} == {1}, "another host was given up"
    for stats in reports[0].stats.ranks:
        assert sum(reports[0].counts[stats.rank]) <= stats.on_time + stats.carried
        if stats.rank in others:
            assert stats.on_time + stats.carried + stats.dropped == reports[stats.rank].stats.steps


def test_one_that_is_back_before_anybody_missed_it_is_taken_in_just_the_same(tmp_path, driver):
    with counting(tmp_path, "eager-solo") as job:
        driver.until(lambda: min(driver.steps()) >= WARM_UP, "all have begun")
        restart(job, driver, [2, 3])
        driver.board.end()
        reports = job.answers()
    agree(reports)
    assert "started again" in "".join(map(job.errors, range(RANKS))) or "silent" in job.errors(0) + job.errors(1)


@pytest.mark.parametrize("strategy", ["wagma:sync_every=5", pytest.param("sgp", marks=pytest.mark.long)])
def test_weights_that_are_averaged_end_equal(strategy, tmp_path, driver):
    args = (strategy, str(tmp_path / "board"), -1, "", 0, host_faults.TIMEOUT_S)
    with hosts_by_hand.Ranks(tmp_path, RANKS, HOSTS, TOKEN, family.march, *args) as job:
        driver.until(lambda: min(driver.steps()) >= WARM_UP, "all have begun")
        restart(job, driver, [2, 3], meanwhile=[0, 1])
        driver.board.end()
        seen = job.answers()
    assert len({report.final for report in seen}) == 1
    assert all(report.is_finite for report in seen)


def test_when_all_hosts_were_started_again_they_begin_anew(tmp_path, driver):
    """Also after one of them had been before, alone: nobody could tell by its own count which start it is."""
    with counting(tmp_path, "eager-solo") as job:
        driver.until(lambda: min(driver.steps()) >= WARM_UP, "all have begun")
        restart(job, driver, [2, 3])
        restart(job, driver, [0, 1, 2, 3])
        driver.board.end()
        reports = job.answers()
    agree(reports)
    given = contributions(reports)
    assert {incarnation for _, incarnation, _ in given} == {1}, "somebody came back to the job that was killed"
    assert max(Counter(given).values()) == 1


def test_without_a_common_secret_it_is_told_why_it_cannot_come_back(tmp_path, driver):
    with counting(tmp_path, "eager-solo", env={}) as job:
        driver.until(lambda: min(driver.steps()) >= WARM_UP, "all have begun")
        kill(job, driver, [2, 3])
        job.start(2)
        assert job.code(2) == 1
        assert "same secret in OUTPACE_TOKEN" in job.errors(2)
        driver.until_more([0, 1], MORE)


def test_a_rank_that_is_started_again_elsewhere_is_told_where_it_belongs(tmp_path, driver):
    with counting(tmp_path, "eager-solo") as job:
        driver.until(lambda: min(driver.steps()) >= WARM_UP, "all have begun")
        kill(job, driver, [2, 3])
        job.start(2, OUTPACE_HOST="another")
        assert job.code(2) == 1
        assert "OUTPACE_HOST=host-1" in job.errors(2)
        driver.until_more([0, 1], MORE)


@pytest.mark.long
def test_a_torchrun_of_each_host_starts_it_again_alone(tmp_path, driver):
    """With a static rendezvous torchrun ends and restarts its own host only; the others do not even pause."""
    program = Path(__file__).parents[1] / "network" / "programs" / "counting.py"
    options = ["--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "3", "--master-addr", "127.0.0.1"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        options += ["--master-port", str(free.getsockname()[1])]
    script = [str(program), "eager-solo", str(tmp_path / "board"), "0.02"]
    launchers = []
    for host in range(HOSTS):
        with (tmp_path / f"launcher-{host}").open("wb") as said:
            command = [sys.executable, "-m", "torch.distributed.run", "--node-rank", str(host), *options, *script]
            env = finding_tests(**TOKEN)
            launchers.append(subprocess.Popen(command, env=env, stdout=said, stderr=subprocess.STDOUT))
    try:
        driver.until(lambda: min(driver.steps()) >= WARM_UP, "all have begun")
        before = driver.pids(range(RANKS))
        driver.kill(driver.pids([3]))
        driver.until(lambda: driver.pids([2])[0] != before[2] and driver.pids([3])[0] != before[3], "they are back")
        driver.until_more(range(RANKS), MORE)
        assert driver.pids([0, 1]) == before[:2]
        driver.board.end()
        codes = [launcher.wait(host_faults.PATIENCE_S) for launcher in launchers]
        assert codes == [0, 0], "\n".join((tmp_path / f"launcher-{host}").read_text() for host in range(HOSTS))
    finally:
        for launcher in launchers:
            launcher.terminate()  # and it ends its ranks
            launcher.wait()


def test_an_agent_that_is_only_starting_when_all_is_over_ends_too(tmp_path, driver):
    """Once it has imported what it needs: whoever follows it is there then. Joining a dead store takes it a minute."""
    with counting(tmp_path, "eager-solo") as job:
        driver.until(lambda: len(agents_of(job.pids())) >= HOSTS, "both hosts start an agent")
        agents = agents_of(job.pids())[:HOSTS]
        job.end_everything()
        driver.until(lambda: all(sessions().count(agent) != 1 for agent in agents), "they have begun, or are gone")
        began = time.monotonic()
        driver.until(lambda: not set(sessions()) & set(agents), "nothing is left of them")
        assert time.monotonic() - began < 20


def sessions() -> list[int]:
    """Of all processes: an agent has one of its own, with whoever follows it."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            found.append(int(stat.read_text().rpartition(")")[2].split()[3]))
    return found
