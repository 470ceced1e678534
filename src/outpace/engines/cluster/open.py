"""Opens a cluster engine for a replica: who runs on which host, one arena a host, and the job's key."""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from outpace.engines.agreement import check_agreement
from outpace.engines.cluster.desk import write_key
from outpace.engines.cluster.engine import ClusterEngine
from outpace.engines.local.arena import Files
from outpace.engines.local.open import Plan, plan_of
from outpace.engines.local.rendezvous import Meeting
from outpace.environment import Place, meeting_name, store_of
from outpace.errors import OutpaceError, TimedOut
from outpace.protocol.hosts import Hosts
from outpace.protocol.rules import Rules
from outpace.replica import OptimizerReplica

TOKEN = "OUTPACE_TOKEN"  #: a secret that all hosts were given; without it the store carries one at the start


def open_cluster(
    replica: OptimizerReplica, rules: Rules, place: Place, max_grad_norm: float | None, timeout_s: float
) -> ClusterEngine:
    """A running engine. Blocks until every rank of the world is there."""
    store, name = store_of(place), meeting_name()
    if store is None:
        raise OutpaceError('engine="cluster" needs more than one rank; start with torchrun or outpace.spawn')
    hosts = _hosts(store, name, place, timeout_s)
    rules = replace(rules, hosts=hosts)
    plan = plan_of(replica, rules, max_grad_norm)
    mine = hosts[place.rank]
    ranks = Hosts(rules).ranks(mine)
    prepare = _preparing(store, name, place, mine, max(hosts) + 1, plan, timeout_s)
    meeting = Meeting(store, f"{name}/host/{mine}", place.rank, ranks, timeout_s, prepare)
    engine = ClusterEngine(
        *(replica, plan.vector, plan.shared, rules, plan.layout, plan.description),
        *(meeting, place.rank, max_grad_norm, timeout_s),
        name=name,
        store=store,
    )
    engine.start()
    return engine


def _hosts(store: Any, name: str, place: Place, timeout_s: float) -> tuple[int, ...]:
    """The host of every rank, numbered in the order of their first ranks."""
    keys = [f"outpace/{name}/where/{rank}" for rank in range(place.world)]
    store.set(keys[place.rank], place.host)
    try:
        store.wait(keys, timedelta(seconds=timeout_s))
    except Exception as error:
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        raise TimedOut(
            f"[rank {place.rank}, host {place.host}] ranks {missing} did not come within {timeout_s:.0f} s. See "
            "whether they started, and whether they constructed their DistributedOptimizer"
        ) from error
    names = [value.decode() for value in store.multi_get(keys)]
    numbers = {host: number for number, host in enumerate(dict.fromkeys(names))}
    return tuple(numbers[host] for host in names)


def _preparing(
    store: Any, name: str, place: Place, host: int, hosts: int, plan: Plan, timeout_s: float
) -> Callable[[Files], None]:
    """What the first rank of a host does in its new arena: compares with the first host, and leaves the job's key."""
    description = f"outpace/{name}/description"

    def prepare(files: Files) -> None:
        if host == 0:
            store.set(description, json.dumps(plan.description))
        else:
            store.wait([description], timedelta(seconds=timeout_s))
            check_agreement(plan.description, json.loads(store.get(description)), place.rank)
        write_key(files.arena, plan.layout, _key(store, name, host, hosts, timeout_s))

    return prepare


def _key(store: Any, name: str, host: int, hosts: int, timeout_s: float) -> bytes:
    """With which records are sealed. From a secret that was given, or from one that is in the store only until every
    host has taken it."""
    given = os.environ.get(TOKEN)
    if given:
        return hmac.digest(given.encode(), name.encode(), "sha256")
    place = f"outpace/{name}/token"
    if host == 0:
        store.set(place, secrets.token_bytes(32))
    else:
        store.wait([place], timedelta(seconds=timeout_s))
    key = bytes(store.get(place))
    if store.add(f"{place}/taken", 1) == hosts:
        store.delete_key(place)
    return key
