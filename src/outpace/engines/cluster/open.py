"""Opens a cluster engine for a replica: who runs on which host, one arena a host, and the key of this start.

All of it goes through the store, with seals. A secret that all hosts were given makes them hold from the first record
on; without one they are checksums until every host has the key, and whoever reads the store until then has it.

The same secret may serve many jobs, so the key is made from it and from a nonce of every host: no record of another
start fits. What is sealed with the secret alone, until there is a key, could be of another start. Nobody relies on it
for that: a host either has just drawn its own nonce, or gets an answer to a question of its own under the key.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace

from outpace.engines.agreement import check_agreement
from outpace.engines.arena.arena import Files
from outpace.engines.arena.open import Parts, Plan, Rendezvous, plan_of, start
from outpace.engines.cluster.backend import check_backend
from outpace.engines.cluster.joining import PLACE, Start, ask, begin_at, hosts_of, start_of
from outpace.engines.cluster.leases import beat_s, lease_s
from outpace.engines.cluster.log import ClusterLog, Drive
from outpace.engines.cluster.sealing import SealedStore
from outpace.engines.cluster.shared_page import Inbox, SentLog, SharedPage, prepare_page
from outpace.engines.cluster.supervisor import AgentSupervisor, LaunchSpec, cluster_of
from outpace.engines.engine import Opened
from outpace.errors import OutpaceError, StoreLost
from outpace.job.environment import Gathering
from outpace.job.store import MeetingStore
from outpace.protocol.hosts import Hosts
from outpace.protocol.ledger import Ledger
from outpace.protocol.rules import Rules
from outpace.replica.replica import OptimizerReplica
from outpace.vector import VectorLayout

TOKEN = "OUTPACE_TOKEN"  #: a secret that all hosts were given; without it the store carries one at the start
_NONCE_BYTES = 32


def open_cluster(
    replica: OptimizerReplica, rules: Rules, gathering: Gathering, max_grad_norm: float | None, timeout_s: float
) -> Opened:
    check_backend()
    place, inner, number = gathering.place, gathering.store, gathering.name.partition("/")[2]
    if inner is None:
        raise OutpaceError('engine="cluster" needs more than one rank; start with torchrun or outpace.spawn')
    if inner.address is None:
        raise OutpaceError(
            f"{place.name} the ranks run on several machines, and torch.distributed was initialised with a file, which "
            "agents cannot meet through. Set MASTER_ADDR and MASTER_PORT on all of them: rank 0's host and a free port"
        )
    given = os.environ.get(TOKEN, "")
    begun = start_of(inner, hmac.digest(given.encode(), number.encode(), "sha256"), number, place, timeout_s)
    hosts = hosts_of(begun)
    rules = replace(rules, hosts=hosts)
    plan = plan_of(replica, rules, max_grad_norm)
    rank, host = place.rank, hosts[place.rank]
    ranks = Hosts(rules).ranks[host]
    prepare = _preparing(begun, hosts, plan) if rank == ranks[0] else lambda _: None
    rendezvous = Rendezvous(begun.store, f"{begun.name}/host/{host}", rank, ranks, timeout_s, prepare, restarts=True)
    parts = Parts(plan, rules, rank, rendezvous)
    page, files = SharedPage(parts.arena), parts.files
    spec = LaunchSpec(
        name=begun.name,
        host=host,
        layout=asdict(plan.layout),
        rules=rules.to_dict(),
        chunks=_described(plan.vector),
        published=_described(plan.published),
        tensors=len(plan.vector.entries),
        has_buffers=bool(replica.to_exchange()),
        max_grad_norm=max_grad_norm,
        timeout_s=timeout_s,
        fds=files.fds,
    )
    supervisor = AgentSupervisor(spec, page, parts.life, f"[rank {rank}, host {host}]", inner.variables)
    file = SentLog(files.log, Inbox(files.inbox, page), page)
    rest = (parts.snapshots, parts.bell, parts.life, parts.faults, timeout_s)
    log = ClusterLog(supervisor, rank, rules, file, *rest, host=host)

    def at_end() -> None:
        if rules.restarts:
            rendezvous.end()
        _await_the_others(inner, begun.name, log.ledger, rank, timeout_s)

    engine = parts.engine(replica, log, None, at_end)  # the agents reduce
    drive = Drive(engine, log)
    start(engine, parts, drive)
    return Opened(engine, drive)


def _described(vector: VectorLayout) -> list[tuple[str, int, int]]:
    return [(str(c.dtype).removeprefix("torch."), c.offset, c.elements) for c in vector.chunks()]


def _await_the_others(store: MeetingStore, name: str, ledger: Ledger, rank: int, timeout_s: float) -> None:
    """The rank whose process holds the store waits until the others have got the end of the log out of it, for at
    most a lease."""
    if not store.ends_with_rank_0:
        return
    returned = {m.rank: f"{cluster_of(name)}/returned/{m.rank}" for m in ledger.members.by_rank.values() if m.alive}
    deadline = time.monotonic() + lease_s(timeout_s)
    with suppress(StoreLost):  # it has waited long enough
        store.set(returned[rank], b"1")
        while rank == 0 and not store.check(list(returned.values())) and time.monotonic() < deadline:
            time.sleep(beat_s(timeout_s) / 10)


def _preparing(start: Start, hosts: tuple[int, ...], plan: Plan) -> Callable[[Files], None]:
    """What the first rank of a host does in its new arena: compares with the first host, and leaves the key."""
    mine = hosts[start.place.rank]
    nonce, is_back = nonce_of(start, mine)  # now: the others need no more of this host before they begin

    def prepare(files: Files) -> None:
        life = start.store.add(start.at(f"lives/{mine}"), 1)
        if mine == 0:
            start.store.compare_set(start.at("description"), "", json.dumps(plan.description))
        (found,) = start.expect(["description"], _first_host)
        check_agreement(plan.description, json.loads(found), start.place.rank)
        if is_back and not os.environ.get(TOKEN):
            raise OutpaceError(
                f"{start.place.name} was started again, and nobody can tell it the key of the running job. Give all "
                f"hosts the same secret in {TOKEN} before the job starts, and a host can come back"
            )
        key = key_of(start, mine, nonce, max(hosts) + 1)
        prepare_page(files.arena, plan.layout, key, life)
        if is_back:
            others = SealedStore(start.inner, key, f"{cluster_of(start.name)}/{PLACE}")
            begin_at(ask(others, mine, start.timeout_s), files, plan.layout)

    return prepare


def nonce_of(start: Start, host: int) -> tuple[bytes, bool]:
    """What this host gives to the key of this start, and whether a life of it before this one has drawn that."""
    drawn = secrets.token_bytes(_NONCE_BYTES)
    nonce = start.store.compare_set(start.at(_nonce(host)), "", drawn)
    return nonce, nonce != drawn


def key_of(start: Start, host: int, nonce: bytes, hosts: int) -> bytes:
    """With which records are sealed in this start. Blocks until every host has given its nonce.

    Its own a host does not read again: whoever else writes into the store cannot make it take up another start's key.
    """
    places = [_nonce(number) for number in range(hosts)]

    def missing() -> str:
        return f"hosts {[number for number, place in enumerate(places) if not start.has([place])]}"

    nonces = start.expect(places, missing)
    nonces[host] = nonce
    return hmac.digest(_secret(start, host == 0, hosts), start.at("key").encode() + b"".join(nonces), "sha256")


def _secret(start: Start, is_first: bool, hosts: int) -> bytes:
    """The one that was given, or one that is in the store only until every host has taken it."""
    given = os.environ.get(TOKEN)
    if given:
        return given.encode()
    if is_first:
        start.store.set(start.at("token"), secrets.token_bytes(32))
    (secret,) = start.expect(["token"], _first_host)
    if start.store.add(start.at("taken"), 1) == hosts:
        start.store.delete_key(start.at("token"))
    return secret


def _nonce(host: int) -> str:
    return f"nonce/{host}"


def _first_host() -> str:
    return "the arena of host 0, which rank 0 makes,"
