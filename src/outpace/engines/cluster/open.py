"""Opens a cluster engine for a replica: who runs on which host, one arena a host, and the job's key.

All of it goes through the store, with seals. A secret that all hosts were given makes them hold from the first record
on; without one they are checksums until every host has the job's key, and whoever reads the store until then has it.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from outpace.engines.agreement import check_agreement
from outpace.engines.cluster.attempts import earlier, goes_on
from outpace.engines.cluster.backend import check_backend
from outpace.engines.cluster.desk import write_key
from outpace.engines.cluster.engine import ClusterEngine
from outpace.engines.cluster.orders import cluster_of
from outpace.engines.cluster.returning import PLACE, ask, begin_at
from outpace.engines.cluster.sealing import SealedStore
from outpace.engines.local.arena import Files
from outpace.engines.local.open import Plan, plan_of
from outpace.engines.local.rendezvous import Meeting
from outpace.environment import Place, meeting_name, store_of
from outpace.errors import OutpaceError, TimedOut
from outpace.meeting_store import MeetingStore
from outpace.protocol.hosts import Hosts
from outpace.protocol.rules import Rules
from outpace.replica import OptimizerReplica

TOKEN = "OUTPACE_TOKEN"  #: a secret that all hosts were given; without it the store carries one at the start


class Start(NamedTuple):
    """Where the ranks of one optimizer meet, and who is asking."""

    store: SealedStore
    name: str
    place: Place
    timeout_s: float

    def at(self, what: str) -> str:
        """A place in the store."""
        return f"{self.name}/{what}"

    def expect(self, whats: list[str], who: Callable[[], str]) -> list[bytes]:
        """What stands there, once it does. Says who did not come in time."""
        keys = [self.at(what) for what in whats]
        try:
            self.store.wait(keys)
        except TimedOut as error:
            raise TimedOut(
                f"{self.place.name} {who()} did not come within {self.timeout_s:.0f} s. See whether they started, and "
                "whether they constructed their DistributedOptimizer"
            ) from error
        return self.store.multi_get(keys)


def open_cluster(
    replica: OptimizerReplica, rules: Rules, place: Place, max_grad_norm: float | None, timeout_s: float
) -> ClusterEngine:
    """A running engine. Blocks until every rank of the world is there."""
    check_backend()
    inner, name = store_of(place, timeout_s), meeting_name()
    if inner is None:
        raise OutpaceError('engine="cluster" needs more than one rank; start with torchrun or outpace.spawn')
    start = _start(inner, name, place, timeout_s)
    name, store, hosts = start.name, start.store, _hosts(start)
    rules = replace(rules, hosts=hosts)
    plan = plan_of(replica, rules, max_grad_norm)
    mine = hosts[place.rank]
    ranks, prepare = Hosts(rules).ranks(mine), _preparing(start, hosts, plan)
    meeting = Meeting(store, f"{name}/host/{mine}", place.rank, ranks, timeout_s, prepare, restarts=True)
    engine = ClusterEngine(
        *(replica, plan.vector, plan.shared, rules, plan.layout, plan.description),
        *(meeting, place.rank, max_grad_norm, timeout_s),
        name=name,
        store=inner,
    )
    engine.start()
    return engine


def _start(inner: MeetingStore, name: str, place: Place, timeout_s: float) -> Start:
    """Of this start of the job, or of one before that goes on without this host."""
    now = _start_of(inner, name, place, timeout_s)
    for before in [_start_of(inner, name, place, timeout_s) for name in earlier(name)]:
        if before.store.check([before.at(key) for key in _everybody(place)]):
            return before if _goes_on(before, now, inner) else now
    return now


def _start_of(inner: MeetingStore, name: str, place: Place, timeout_s: float) -> Start:
    given = os.environ.get(TOKEN, "")
    key = hmac.digest(given.encode(), name.encode(), "sha256")
    return Start(SealedStore(inner, key, "outpace"), name, place, timeout_s)


def _goes_on(before: Start, now: Start, inner: MeetingStore) -> bool:
    """The first rank of a host finds out, and tells the others."""
    hosts, mine = _hosts(before), f"goes-on/{before.place.host}"
    here = hosts[before.place.rank]
    if before.place.rank == hosts.index(here):
        others = [host for host in range(max(hosts) + 1) if host != here]
        newcomers = [
            f"outpace/{now.at(key)}" for key, host in zip(_everybody(now.place), hosts, strict=True) if host != here
        ]
        found = goes_on(inner, cluster_of(before.name), others, newcomers, before.timeout_s)
        now.store.set(now.at(mine), json.dumps(found))
    (told,) = now.expect([mine], lambda: f"rank {hosts.index(here)}")
    return bool(json.loads(told))


def _everybody(place: Place) -> list[str]:
    return [f"where/{rank}" for rank in range(place.world)]


def _hosts(start: Start) -> tuple[int, ...]:
    """The host of every rank, numbered in the order of their first ranks."""
    everybody = _everybody(start.place)
    before = start.store.compare_set(start.at(everybody[start.place.rank]), "", start.place.host).decode()
    if before != start.place.host:
        raise OutpaceError(
            f"{start.place.name} this rank was on host {before} before it was started again. Start it there, or name "
            f"this host so: OUTPACE_HOST={before}"
        )

    def missing() -> str:
        late = [rank for rank, key in enumerate(everybody) if not start.store.check([start.at(key)])]
        return f"ranks {late}"

    names = [value.decode() for value in start.expect(everybody, missing)]
    numbers = {host: number for number, host in enumerate(dict.fromkeys(names))}
    return tuple(numbers[host] for host in names)


def _preparing(start: Start, hosts: tuple[int, ...], plan: Plan) -> Callable[[Files], None]:
    """What the first rank of a host does in its new arena: compares with the first host, and leaves the job's key."""
    mine = hosts[start.place.rank]

    def prepare(files: Files) -> None:
        is_back = start.store.add(start.at(f"arenas/{mine}"), 1) > 1
        if mine == 0 and not is_back:
            start.store.set(start.at("description"), json.dumps(plan.description))
        else:
            (found,) = start.expect(["description"], _first_host)
            check_agreement(plan.description, json.loads(found), start.place.rank)
        if is_back and not os.environ.get(TOKEN):
            raise OutpaceError(
                f"{start.place.name} was started again, and nobody can tell it the key of the running job. Give all "
                f"hosts the same secret in {TOKEN} before the job starts, and a host can come back"
            )
        key = _key(start, mine == 0, max(hosts) + 1)
        write_key(files.arena, plan.layout, key)
        if is_back:
            others = start.store.with_key(key, f"{cluster_of(start.name)}/{PLACE}")
            begin_at(ask(others, mine, start.timeout_s), files, plan.layout)

    return prepare


def _key(start: Start, is_first: bool, hosts: int) -> bytes:
    """With which records are sealed. From a secret that was given, or from one that is in the store only until every
    host has taken it."""
    given = os.environ.get(TOKEN)
    if given:
        return hmac.digest(given.encode(), start.at("key").encode(), "sha256")
    if is_first:
        start.store.set(start.at("token"), secrets.token_bytes(32))
    (key,) = start.expect(["token"], _first_host)
    if start.store.add(start.at("taken"), 1) == hosts:
        start.store.delete_key(start.at("token"))
    return key


def _first_host() -> str:
    return "the arena of host 0, which rank 0 makes,"
