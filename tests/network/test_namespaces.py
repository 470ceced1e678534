"""The hosts themselves: who reaches whom, and that no byte of them stays."""

import subprocess
import sys

import pytest

from tests.network import namespaces
from tests.network.commands import NetworkError, run
from tests.network.host import resume, state, stop
from tests.network.namespaces import MOST_HOSTS, Hosts
from tests.network.waiting import until

JUNK = bytes(range(256)) * 64


def listen(host, port: int) -> subprocess.Popen:
    """A server that accepts anything, and prints how much it was sent."""
    script = (
        "import socket, sys\n"
        f"with socket.create_server(('', {port})) as server:\n"
        "    while True:\n"
        "        connection, _ = server.accept()\n"
        "        with connection:\n"
        "            print(sum(map(len, iter(lambda: connection.recv(65536), b''))), flush=True)\n"
    )
    process = host.start(sys.executable, "-S", "-c", script, stdout=subprocess.PIPE)
    until(lambda: port in host.listening_ports())
    return process


def test_all_hosts_reach_each_other(three_hosts):
    assert [(a.index, b.index) for a in three_hosts for b in three_hosts if not a.reaches(b)] == []
    assert len({host.address for host in three_hosts}) == 3


def test_the_machines_own_network_is_untouched(network):
    def own() -> str:
        return run("ip", "-o", "link") + run("ip", "-o", "address") + run("ip", "route") + run("tc", "qdisc")

    before = own()
    with Hosts(2) as (one, other):
        other.shape(100)
        other.cut()
        assert own() == before
        assert not one.reaches(other)
    assert own() == before


def test_a_host_that_is_cut_off_is_out_of_reach_both_ways_until_it_is_restored(three_hosts):
    one, other, third = three_hosts
    other.cut()
    assert not one.reaches(other)
    assert not other.reaches(one)
    assert one.reaches(third)
    other.cut()
    other.restore()
    until(lambda: one.reaches(other))  # the kernel may have just given up asking who has the address, as in real life
    until(lambda: other.reaches(one))
    other.restore()


def test_junk_arrives(two_hosts):
    one, other = two_hosts
    server = listen(other, 4000)
    before = other.traffic()
    assert one.send(other, 4000, JUNK) == "accepted"
    assert int(server.stdout.readline()) == len(JUNK)
    assert one.send(other, 4001, JUNK) == "refused"
    added = other.traffic().since(before)
    assert len(JUNK) < added.received_bytes < len(JUNK) * 1.5
    server.stdout.close()


def test_a_process_is_stopped_and_goes_on(two_hosts):
    sleeper = two_hosts[0].start("sleep", "1000")
    until(lambda: sleeper.pid in two_hosts[0].pids())
    stop(sleeper.pid)
    assert state(sleeper.pid) == "T"
    resume(sleeper.pid)
    until(lambda: state(sleeper.pid) == "S")


def test_killing_a_host_ends_its_processes_and_their_children_and_nobody_elses(two_hosts):
    one, other = two_hosts
    family = one.start("sh", "-c", "sleep 1000 & sleep 1000 & wait")
    neighbour = other.start("sleep", "1000")
    until(lambda: len(one.pids()) == 3 and len(other.pids()) == 1)
    one.kill()
    assert one.pids() == []
    assert family.returncode == -9
    assert neighbour.poll() is None
    assert other.reaches(one), "the host itself stays"


def test_what_fails_says_which_command_and_why(two_hosts):
    with pytest.raises(NetworkError, match=r"`ip -n \S+ link show dev nothing` ended with exit code 1.*does not exist"):
        run("ip", "-n", two_hosts[0].namespace, "link", "show", "dev", "nothing")
    with pytest.raises(NetworkError, match=f"there can be 1 to {MOST_HOSTS}"):
        Hosts(MOST_HOSTS + 1)


def test_hosts_can_be_built_from_any_directory(network, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with Hosts(2) as (one, other):
        assert one.reaches(other)


def test_a_machine_without_what_hosts_are_made_of_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    assert namespaces.why_not() == "network namespaces need root"
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces.shutil, "which", lambda name: None if name == "tc" else name)
    assert namespaces.why_not() == "`tc` is not installed (package iproute2)"
    monkeypatch.setattr(namespaces.shutil, "which", lambda name: name)
    monkeypatch.setattr(namespaces, "run", refuse)
    monkeypatch.setattr(namespaces, "stale", set)
    assert namespaces.why_not() == "the kernel refuses what the hosts are made of: `ip netns add`: not permitted"


def refuse(*command: str) -> str:
    raise NetworkError(f"`{' '.join(command[:3])}`: not permitted")
