"""The store is lost, or somebody does not come: every rank is told within `timeout_s`, by name, and nobody hangs."""

import re
import signal
import socket

import pytest

import outpace
from tests.support import store_faults
from tests.support.held_store import held_store

SLACK_S = 15.0  #: for a machine that has other things to do
AGENT_S = 12.0  #: within which an agent, which is a fork, has surely begun


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_store_ends_all_ranks_on_all_hosts_with_what_to_do(tmp_path, how):
    timeout_s = AGENT_S
    with held_store() as holder:
        arguments = (str(tmp_path), holder.pid, how, timeout_s)
        told = outpace.spawn(store_faults.lose_the_store, 4, arguments, hosts=2, env=holder.env)
    port = holder.env["MASTER_PORT"]
    for rank, (error, words, seconds) in enumerate(told):
        assert error == "StoreLost", words
        assert f"[rank {rank}, host {rank // 2}] the store at 127.0.0.1:{port}" in words
        assert "restart the job from its last checkpoint" in words
        assert seconds < timeout_s + SLACK_S


def test_a_store_that_stands_still_at_the_start_is_lost():
    with held_store() as holder:
        told = outpace.spawn(store_faults.stop_holder_and_begin, 2, (holder.pid, 2.0), hosts=2, env=holder.env)
    for rank, (error, words, seconds) in enumerate(told):
        assert error == "StoreLost", words
        assert f"[rank {rank}, host host-{rank}]" in words
        assert "no answer for 2 s" in words
        assert seconds < 2 + SLACK_S


def test_a_store_that_is_not_there_is_lost():
    with socket.socket() as nobody:  # has the port, but does not listen
        nobody.bind(("127.0.0.1", 0))
        env = {"MASTER_PORT": str(nobody.getsockname()[1])}
        told = outpace.spawn(store_faults.begin, 2, (2.0,), hosts=2, env=env)
    for error, words, seconds in told:
        assert error == "StoreLost", words
        assert "cannot be reached" in words
        assert "whether its port is open" in words
        assert seconds < 2 + SLACK_S


@pytest.mark.parametrize(
    ("how", "timeout_s", "said"),
    [
        ("never", 8, r"\[rank 0, host host-0\] ranks \[2\] did not come within 8 s"),
        ("hangs", AGENT_S, r"waited 12 s for every rank to join; still missing: ranks \[2\] \(on hosts \[1\]\)"),
    ],
)
def test_a_host_that_does_not_come_is_named(how, timeout_s, said):
    told = outpace.spawn(store_faults.begin_without_the_last, 3, (timeout_s, how), hosts=2)
    error, words, seconds = told[0]
    assert error == "TimedOut", words
    assert re.search(said, words), words
    assert seconds < 2 * timeout_s + SLACK_S


@pytest.mark.parametrize(
    ("program", "said"),
    [("exit 3", "ended 5 times within 60 s"), ("exec sleep 600", "did not begin within 4 s")],
)
def test_an_agent_that_cannot_be_started_is_named(tmp_path, program, said):
    agent = tmp_path / "agent"
    agent.write_text(f"#!/bin/sh\n{program}\n")
    agent.chmod(0o755)
    told = outpace.spawn(store_faults.begin_without_the_last, 2, (4.0, str(agent)), hosts=2)
    assert said in told[1][1]
    assert "[rank 1, host 1]" in told[1][1]
