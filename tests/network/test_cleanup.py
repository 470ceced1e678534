"""Nothing is left behind, whatever ends the process that built hosts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.network.cleanup import existing
from tests.network.host import state
from tests.network.namespaces import ROOT, Hosts
from tests.network.waiting import until

BUILDER = """
import json, sys
from tests.network.namespaces import Hosts

with Hosts(2) as hosts:
    sleeper = hosts[1].start("sh", "-c", "sleep 1000 & wait")
    while len(hosts[1].pids()) < 2:
        pass
    told = {"names": hosts.names, "pids": hosts[1].pids(), "watcher": hosts.watcher_pid}
    print(json.dumps(told), flush=True)
    if sys.argv[1] == "wait":
        sys.stdin.read()
    if sys.argv[1] == "fail":
        raise SystemExit(7)
"""


@contextmanager
def built(then: str) -> Iterator[tuple[subprocess.Popen, dict]]:
    """A process that has built hosts, with processes on them; and what it told of them."""
    with subprocess.Popen(
        [sys.executable, "-c", BUILDER, then],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_ctrl_c,
    ) as process:
        told = json.loads(process.stdout.readline())
        assert len(existing() & set(told["names"])) == 4
        assert len(told["pids"]) == 2
        yield process, told


def hear_ctrl_c() -> None:
    """A shell has its background jobs ignore SIGINT, and with them everything they start: these tests among it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def is_gone(told: dict) -> bool:
    return not existing() & set(told["names"]) and all(state(pid) in ("gone", "Z") for pid in told["pids"])


@pytest.mark.parametrize(("then", "code"), [("end", 0), ("fail", 7)])
def test_nothing_is_left_after_the_end(network, then, code):
    with built(then) as (process, told):
        assert process.wait(30) == code
    assert is_gone(told)
    assert state(told["watcher"]) == "gone"


def test_nothing_is_left_after_ctrl_c(network):
    with built("wait") as (process, told):
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT
    assert is_gone(told)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_after_a_kill(network, sign):
    with built("wait") as (process, told):
        process.send_signal(sign)
        assert process.wait(30) == -sign
    until(lambda: is_gone(told))


def test_the_next_to_build_hosts_sweeps_what_a_killed_process_and_its_watcher_left_and_nothing_else(network):
    with built("wait") as (_, told_by_running):
        with built("wait") as (killed, told_by_killed):
            os.kill(told_by_killed["watcher"], signal.SIGKILL)
            killed.kill()
        assert existing() >= set(told_by_killed["names"])
        with Hosts(1):
            assert is_gone(told_by_killed)
            assert existing() >= set(told_by_running["names"])
            assert all(state(pid) == "S" for pid in told_by_running["pids"])
    assert is_gone(told_by_running)
