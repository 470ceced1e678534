"""Hosts of a real network that get into trouble: the others go on, nothing is lost unrecorded and nothing doubled."""

import pytest

from tests.network import troubles


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


def test_a_stopped_rank_costs_the_other_hosts_nothing(three_hosts):
    outcome = troubles.play(three_hosts, troubles.stop_rank, ranks=2, strategy="eager-majority")
    assert outcome.is_agreed
    assert (outcome.lost, outcome.doubled) == (0, 0)
    assert outcome.pause_s < 3.0, "somebody waited for the rank that stood still for 3 s"
