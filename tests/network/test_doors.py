"""Where a job's processes listen, on hosts with several addresses: agents on the one that leads to the store alone."""

from __future__ import annotations

from pathlib import Path

from tests.network.commands import run
from tests.network.host import LISTENING
from tests.network.launch import torchrun

TRAIN = Path(__file__).parent / "programs" / "train.py"
EVERYWHERE = {"00000000", "0" * 32}
JUNK = bytes(range(256)) * 16


def listening(host):
    """(address as the kernel writes it, port) of all sockets on which processes of a host accept connections."""
    told = run(*host.command("cat", "/proc/net/tcp", "/proc/net/tcp6"))
    rows = [line.split() for line in told.splitlines() if not line.lstrip().startswith("sl")]
    return {tuple(row[1].rsplit(":", 1)) for row in rows if row[3] == LISTENING}


def in_hex(address):
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))


def test_agents_listen_on_the_address_towards_the_store_alone_and_junk_there_changes_nothing(two_hosts):
    for host in two_hosts:  # another interface, which has nothing to do with the job
        run("ip", "-n", host.namespace, "address", "add", f"192.168.7.{host.index + 1}/24", "dev", "lo")
    arguments = ("--strategy", "allreduce", "--steps", "300", "--sleep-ms", "5")
    with torchrun(two_hosts, TRAIN, *arguments, ranks=1) as job:
        job.until(lambda: all("step 50\n" in job.said(rank) for rank in range(2)), "all ranks have come to step 50")
        for host in two_hosts:
            doors = listening(host)
            mine = {door for door in doors if door[0] == in_hex(host.address)}
            stores = {door for door in doors if door[0] in EVERYWHERE}  # torch's TCPStore knows no other way
            assert len(mine) == 1, doors
            assert doors == mine | stores
            assert bool(stores) == (host.index == 0)
            (agent,) = mine
            other = two_hosts[1 - host.index]
            assert other.send(host, int(agent[1], 16), JUNK, timeout_s=0.5) == "lost", "the door should be shut"
            for _, port in stores:
                assert other.send(host, int(port, 16), JUNK) == "accepted"
        reports = job.reports()
    assert len({report["digest"] for report in reports}) == 1
    assert [report["steps"] for report in reports] == [300, 300]
