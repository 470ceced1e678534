"""Hosts of a real network that get into trouble: the others go on, nothing is lost unrecorded and nothing doubled."""

import pytest

from tests.network import troubles
from tests.network.namespaces import Hosts

LEADER = (0,)
ELSEWHERE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")  # where nobody sees the other processes


@pytest.mark.parametrize(
    "trouble",
    [
        troubles.kill_agent,
        troubles.stop_agent,
        troubles.kill_host,
        troubles.kill_host_and_start_it_again,
        troubles.cut_off,
    ],
    ids=lambda trouble: trouble.__name__,
)
def test_a_host_in_trouble_costs_no_round_and_doubles_none(three_hosts, trouble):
    outcome = troubles.play(three_hosts, trouble, ranks=2, strategy="eager-majority")
    assert outcome.is_agreed
    assert (outcome.lost, outcome.doubled) == (0, 0)
    assert outcome.applied > troubles.WARM_UP * 6


@pytest.mark.parametrize("trouble", [troubles.kill_agent, troubles.stop_agent], ids=lambda trouble: trouble.__name__)
def test_the_agent_that_writes_for_all_in_trouble_costs_no_round_and_doubles_none(three_hosts, trouble):
    """The second host writes while the first is silent for longer than its lease. It wakes up, and is back."""
    outcome = troubles.play(three_hosts, trouble, ranks=2, strategy="eager-majority", troubled=LEADER)
    assert outcome.is_agreed
    assert (outcome.lost, outcome.doubled) == (0, 0)


@pytest.mark.parametrize(
    "trouble",
    [troubles.cut_off, troubles.cut_off_from_store, troubles.cut_off_from_others],
    ids=lambda trouble: trouble.__name__,
)
def test_the_host_that_writes_for_all_cut_off_and_back_costs_no_round_and_doubles_none(network, trouble):
    """The store is on a host of its own, so that the others still reach it."""
    with Hosts(4) as hosts:
        outcome = troubles.play(hosts, trouble, 2, "eager-majority", troubled=LEADER, store_apart=True)
    assert outcome.is_agreed
    assert (outcome.lost, outcome.doubled) == (0, 0)


@pytest.mark.parametrize(
    "trouble",
    [troubles.kill_host, troubles.cut_off, troubles.kill_host_and_start_it_again],
    ids=lambda trouble: trouble.__name__,
)
def test_two_hosts_in_trouble_at_once_cost_no_round_and_double_none(network, trouble):
    with Hosts(5) as hosts:
        outcome = troubles.play(hosts, trouble, ranks=1, strategy="eager-majority", troubled=(1, 4))
    assert outcome.is_agreed
    assert (outcome.lost, outcome.doubled) == (0, 0)


def test_a_stopped_rank_costs_the_other_hosts_nothing(three_hosts):
    outcome = troubles.play(three_hosts, troubles.stop_rank, ranks=2, strategy="eager-majority")
    assert outcome.is_agreed
    assert (outcome.lost, outcome.doubled) == (0, 0)
    assert outcome.pause_s < 3.0, "somebody waited for the rank that stood still for 3 s"


def test_a_host_that_was_started_again_elsewhere_while_it_slept_ends_when_it_wakes_up(three_hosts):
    with troubles.scene(three_hosts, ranks=1, strategy="eager-majority") as scene:
        job, driver = scene.job, scene.driver
        old = driver.pids(scene.victims)
        with driver.stopped(old + scene.agents()):
            for rank in scene.victims:
                job.start_rank(rank, ELSEWHERE)
            driver.until(lambda: not set(driver.pids(scene.victims)) & set(old), "it is back")
            driver.until_more(range(job.world), troubles.MORE)
        told = "another process has taken the place of host 2"
        driver.until(lambda: all(told in job.complained(rank) for rank in scene.victims), "who slept is told")
        driver.until_more(scene.others, troubles.MORE)
        reports = scene.reports(range(job.world))
    assert troubles.is_agreed(reports)
    lives = {(rank, incarnation) for rank, incarnation, _ in troubles.contributions(reports) if rank in scene.others}
    assert lives == {(rank, 1) for rank in scene.others}, "another host was given up"
