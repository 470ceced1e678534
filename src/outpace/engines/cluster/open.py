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
from collections.abc import Callable
from dataclasses import replace

from outpace.engines.agreement import check_agreement
from outpace.engines.arena.arena import Files
from outpace.engines.arena.open import Plan, plan_of
from outpace.engines.arena.rendezvous import Meeting
from outpace.engines.cluster.backend import check_backend
from outpace.engines.cluster.engine import ClusterEngine
from outpace.engines.cluster.joining import PLACE, Start, ask, begin_at, hosts_of, start_of
from outpace.engines.cluster.shared_page import prepare_page
from outpace.engines.cluster.supervisor import cluster_of
from outpace.errors import OutpaceError
from outpace.job.environment import Gathering
from outpace.protocol.hosts import Hosts
from outpace.protocol.rules import Rules
from outpace.replica.replica import OptimizerReplica

TOKEN = "OUTPACE_TOKEN"  #: a secret that all hosts were given; without it the store carries one at the start
_NONCE_BYTES = 32


def open_cluster(
    replica: OptimizerReplica, rules: Rules, gathering: Gathering, max_grad_norm: float | None, timeout_s: float
) -> ClusterEngine:
    """A running engine. Blocks until every rank of the world is there."""
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
    start = start_of(inner, hmac.digest(given.encode(), number.encode(), "sha256"), number, place, timeout_s)
    name, store, hosts = start.name, start.store, hosts_of(start)
    rules = replace(rules, hosts=hosts)
    plan = plan_of(replica, rules, max_grad_norm)
    mine = hosts[place.rank]
    ranks = Hosts(rules).ranks(mine)
    prepare = _preparing(start, hosts, plan) if place.rank == ranks[0] else lambda _: None
    meeting = Meeting(store, f"{name}/host/{mine}", place.rank, ranks, timeout_s, prepare, restarts=True)
    engine = ClusterEngine(
        *(replica, plan.vector, plan.shared, rules, plan.layout, plan.description),
        *(meeting, place.rank, max_grad_norm, timeout_s),
        name=name,
        store=inner,
    )
    engine.start()
    return engine


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
            others = start.store.with_key(key, f"{cluster_of(start.name)}/{PLACE}")
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
