"""Whoever reaches the store or the agents' ports can stop a job at worst: no round is forged, junk changes nothing."""

import pytest

import outpace
from tests.support import strangers
from tests.support.held_store import held_store

STEPS = 60
TAMPERED = "that no rank of this job wrote"


def ran(deed, strategy="allreduce"):
    outcomes = outpace.spawn(strangers.disturbed, 2, (strategy, STEPS, deed), hosts=2)
    for outcome in outcomes:
        assert outcome.seconds < strangers.TIMEOUT_S + 15, outcome
    return outcomes


def check_trained(outcomes):
    assert [outcome.error for outcome in outcomes] == ["", ""]
    assert len({outcome.final for outcome in outcomes}) == 1
    assert outcomes[0].counts == [[1.0] * STEPS] * 2


@pytest.mark.parametrize("deed", ["forge_an_entry", "replay_an_entry", "put_junk_for_an_entry"])
def test_what_no_rank_wrote_ends_the_job_on_all_ranks_and_is_named(deed):
    for outcome in ran(deed):
        assert TAMPERED in outcome.error
        assert "/cluster/log/" in outcome.error


def test_entries_that_vanish_end_the_job_or_change_nothing():
    outcomes = ran("delete_entries")
    if any(outcome.error for outcome in outcomes):
        assert all(outcome.error for outcome in outcomes), "with a full quorum nobody goes on alone"
    else:
        check_trained(outcomes)


def test_signs_of_life_that_are_forged_or_old_change_nothing():
    check_trained(ran("write_leases"))


def test_nobody_looks_again_at_what_was_said_at_the_start():
    check_trained(ran("meddle_where_nobody_looks_any_more"))


def test_the_key_is_in_the_store_no_longer_and_never_on_a_command_line():
    outcomes = ran("look_for_the_key")
    check_trained(outcomes)
    assert outcomes[0].extra == (False, [])


def test_junk_and_a_thousand_connections_on_every_port_change_nothing():
    with held_store() as holder:
        arguments = ("allreduce", STEPS, "knock_everywhere")
        outcomes = outpace.spawn(strangers.disturbed, 2, arguments, hosts=2, env=holder.env)
    check_trained(outcomes)
    ports, agents = outcomes[0].extra
    assert ports == 3, "the store's, and one of each agent"
    assert list(outcomes[0].agents) == agents, "none had to be replaced"
