"""Agents and hosts that are stopped or killed: the others go on, nothing is lost unrecorded and nothing doubled."""

import threading
from collections import Counter
from collections.abc import Callable
from itertools import product

import pytest

import outpace
from outpace.protocol.shared_log import parent
from tests.support import family, host_faults, ranks
from tests.support.agreement import agree, contributions
from tests.support.family import Board
from tests.support.host_faults import Driver, agents_of

WARM_UP, MORE = 30, 40  # steps of every rank before the fault, and of those who go on while it lasts
FEW = 8  # where so many processes share the cores that 40 steps may take longer than a rank waits for its agent


def run(what, strategy: str, ranks: int, hosts: int, fault: Callable[[Driver], None], tmp_path):
    """Ranks that train while somebody makes a fault."""
    driver = Driver(Board(tmp_path / "board"), ranks)
    failed: list[BaseException] = []

    def drive() -> None:
        try:
            driver.until(lambda: min(driver.steps()) >= WARM_UP, "all have begun")
            fault(driver)
        except BaseException as error:
            failed.append(error)
        finally:
            driver.board.end()

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        return outpace.spawn(*what(strategy, str(tmp_path / "board")), hosts=hosts)
    finally:
        driver.board.end()
        thread.join()
        if failed:
            raise failed[0]


def counting(ranks: int):
    return lambda strategy, path: (host_faults.count_until_ended, ranks, (strategy, path))


def marching(ranks: int):
    return lambda strategy, path: (family.march, ranks, (strategy, path, -1, "", 0, host_faults.TIMEOUT_S))


def check_account(reports: list, all_steps: dict[int, int]) -> None:
    """Every step of every rank is in one round, or recorded as dropped; weights say the same as the ledger."""
    agree(reports)
    given = contributions(reports)
    assert max(Counter((rank, step) for rank, _, step in given).values()) == 1
    for stats in reports[0].stats.ranks:
        applied = sum(reports[0].counts[stats.rank])
        assert applied == stats.on_time + stats.carried
        if stats.rank in all_steps:
            assert applied + stats.dropped == all_steps[stats.rank]


def steps_of(reports: list) -> dict[int, int]:
    return {report.rank: report.stats.steps for report in reports}


def kill_agent(driver: Driver) -> None:
    driver.kill(agents_of(driver.pids([2, 3]))[:1])
    driver.until_more(range(4), MORE)


def kill_agent_and_its_follower(driver: Driver) -> None:
    driver.kill(agents_of(driver.pids([2, 3])))
    driver.until_more(range(4), MORE)


def kill_agents_of_both_hosts(driver: Driver) -> None:
    driver.kill([agents_of(driver.pids([0, 1]))[0], agents_of(driver.pids([2, 3]))[0]])
    driver.until_more(range(4), MORE)


def stop_agent(driver: Driver) -> None:
    with driver.stopped(agents_of(driver.pids([2, 3]))[:1]):
        driver.until_more([0, 1], MORE)
    driver.until_more(range(4), MORE)


def stop_host(driver: Driver) -> None:
    with driver.stopped(driver.pids([2, 3]) + agents_of(driver.pids([2, 3]))):
        driver.until_more([0, 1], MORE)
    driver.until_more(range(4), MORE)


def stop_first_host(driver: Driver) -> None:
    with driver.stopped(driver.pids([0, 1]) + agents_of(driver.pids([0, 1]))):
        driver.until_more([2, 3], MORE)
    driver.until_more(range(4), MORE)


def stop_rank(driver: Driver) -> None:
    with driver.stopped(driver.pids([3])):
        driver.until_more([0, 1, 2], MORE)
    driver.until_more(range(4), MORE)


PASSING = [
    kill_agent,
    kill_agent_and_its_follower,
    kill_agents_of_both_hosts,
    stop_agent,
    stop_first_host,
    pytest.param(stop_host, marks=pytest.mark.long),
]


@pytest.mark.parametrize("fault", PASSING)
def test_ranks_go_on_agree_and_lose_nothing_unrecorded(fault, tmp_path):
    reports = run(counting(4), "eager-majority", 4, 2, fault, tmp_path)
    check_account(reports, steps_of(reports))


def kill_leader(driver: Driver) -> None:
    driver.kill(agents_of(driver.pids([0]))[:1])
    driver.until_more(range(driver.world), MORE)


def kill_leader_and_its_follower(driver: Driver) -> None:
    driver.kill(agents_of(driver.pids([0])))
    driver.until_more(range(driver.world), MORE)


def stop_leader(driver: Driver) -> None:
    with driver.stopped(agents_of(driver.pids([0]))[:1]):
        driver.until_more(range(1, driver.world), MORE)
    driver.until_more(range(driver.world), MORE)


def kill_relay(driver: Driver) -> None:
    driver.kill(agents_of(driver.pids([1]))[:1])
    driver.until_more(range(driver.world), MORE)


def stop_relay(driver: Driver) -> None:
    with driver.stopped(agents_of(driver.pids([1]))[:1]):
        driver.until_more([0, *range(2, driver.world)], FEW)
    driver.until_more(range(driver.world), MORE)


def kill_leader_and_relay(driver: Driver) -> None:
    driver.kill([*agents_of(driver.pids([0]))[:1], *agents_of(driver.pids([1]))[:1]])
    driver.until_more(range(driver.world), MORE)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("fault", [kill_relay, stop_relay, kill_leader_and_relay])
def test_a_host_that_passes_on_for_others_costs_no_round_and_doubles_none(fault, tmp_path):
    """Hosts 9 and 10 are behind host 1: neither what they say nor what is written gets past it."""
    assert [parent(0, place, 11) for place in range(1, 11)] == [0] * 8 + [1, 1]
    reports = run(counting(11), "eager-majority", 11, 11, fault, tmp_path)
    check_account(reports, steps_of(reports))


def stop_leading_host(driver: Driver) -> None:
    with driver.stopped(driver.pids([0]) + agents_of(driver.pids([0]))):
        driver.until_more(range(1, driver.world), MORE)
    driver.until_more(range(driver.world), MORE)


def stop_leader_and_kill_the_next(driver: Driver) -> None:
    with driver.stopped(agents_of(driver.pids([0]))[:1]):
        driver.kill(agents_of(driver.pids([1]))[:1])
        driver.until_more(range(1, driver.world), MORE)
    driver.until_more(range(driver.world), MORE)


@pytest.mark.parametrize(
    "fault",
    [
        *(kill_leader_and_its_follower, stop_leader_and_kill_the_next),
        *(pytest.param(each, marks=pytest.mark.long) for each in (kill_leader, stop_leader, stop_leading_host)),
    ],
)
def test_the_host_that_writes_for_all_may_be_lost_and_wake_up_again(fault, tmp_path):
    reports = run(counting(4), "eager-majority", 4, 4, fault, tmp_path)
    check_account(reports, steps_of(reports))


@pytest.mark.parametrize("gone", [(0, 1), pytest.param((1, 2), marks=pytest.mark.long)])
def test_two_hosts_lost_at_once_are_left_behind(gone, tmp_path):
    others = [rank for rank in range(4) if rank not in gone]

    def kill_both(driver: Driver) -> None:
        driver.kill(driver.pids(gone) + [agent for rank in gone for agent in agents_of(driver.pids([rank]))])
        driver.until_more(others, MORE)

    reports = run(counting(4), "eager-solo", 4, 4, kill_both, tmp_path)
    left = [report for report in reports if report is not None]
    assert [report.rank for report in left] == others
    check_account(left, steps_of(left))


def test_a_stopped_rank_is_no_fault_of_its_host(tmp_path):
    reports = run(counting(4), "eager-majority", 4, 2, stop_rank, tmp_path)
    check_account(reports, steps_of(reports))
    assert {incarnation for _, incarnation, _ in contributions(reports)} == {1}, "a host was given up"


@pytest.mark.parametrize("point", ["after-append", pytest.param("writing-snapshot", marks=pytest.mark.long)])
def test_a_rank_whose_own_record_is_cut_out_of_the_log_meanwhile_goes_on_at_once(point, tmp_path):
    given = ("eager:quorum=solo,max_staleness=3", {3: f"stop:{point}:20"}, str(tmp_path), 0, 150)
    reports = outpace.spawn(ranks.count_with_fault_and_a_short_log, 4, given, hosts=2)
    assert reports[0].rounds_meanwhile >= 150
    assert reports[3].reloads > 0, "the log was never cut before it was read"
    check_account(reports, steps_of(reports))


@pytest.mark.parametrize(
    ("hosts", "killed"), [(2, 0), (3, -1), *(pytest.param(*each, marks=pytest.mark.long) for each in ((2, -1), (3, 0)))]
)
def test_a_killed_host_is_left_behind_and_nothing_committed_is_lost(hosts, killed, tmp_path):
    ranks = 2 * hosts
    gone = [2 * (killed % hosts), 2 * (killed % hosts) + 1]
    others = [rank for rank in range(ranks) if rank not in gone]

    def kill_host(driver: Driver) -> None:
        driver.kill(driver.pids(gone) + agents_of(driver.pids(gone)))
        driver.until_more(others, MORE)

    reports = run(counting(ranks), "eager-solo", ranks, hosts, kill_host, tmp_path)
    assert [report.rank for report in reports if report is not None] == others
    left = [report for report in reports if report is not None]
    check_account(left, steps_of(left))
    assert [r.state for r in left[0].stats.ranks if r.rank in gone] == ["dead", "dead"]


def test_a_killed_rank_is_its_hosts_business(tmp_path):
    def kill_rank(driver: Driver) -> None:
        driver.kill(driver.pids([3]))
        driver.until_more([0, 1, 2], MORE)

    reports = run(counting(4), "eager-majority", 4, 2, kill_rank, tmp_path)
    left = [report for report in reports if report is not None]
    check_account(left, steps_of(left))
    assert {incarnation for _, incarnation, _ in contributions(left)} == {1}, "a host was given up"


AVERAGED = ["wagma:sync_every=5", "sgp", "ad-psgd", "d-psgd", "local-sgd:every=4"]
SHORT = [("wagma:sync_every=5", stop_host), ("sgp", kill_agent)]


@pytest.mark.parametrize(
    ("strategy", "fault"),
    [
        each if each in SHORT else pytest.param(*each, marks=pytest.mark.long)
        for each in product(AVERAGED, (kill_agent, stop_host))
    ],
)
def test_weights_that_are_averaged_end_equal_after_a_fault(strategy, fault, tmp_path):
    seen = run(marching(4), strategy, 4, 2, fault, tmp_path)
    assert len({report.final for report in seen}) == 1
    assert all(report.is_finite for report in seen)
