"""Which start of the job a host takes part in, where its launcher has started it again.

torchrun counts its restarts. With a rendezvous that starts all hosts again, all have the same count and meet anew. With
a static one (`--node-rank`, `--master-addr`) only the host that failed counts, and the others are where they were. Owns
telling these apart: by whether anybody else comes, or goes on.
"""

from __future__ import annotations

import time
from typing import Any

from outpace.engines.cluster.leases import place_of
from outpace.engines.cluster.timing import beat_s, lease_s


def earlier(name: str) -> list[str]:
    """The names that this meeting had in earlier attempts, the last one first.

    >>> earlier("2/0")
    ['1/0', '0/0']
    """
    attempt, _, number = name.partition("/")
    return [f"{before}/{number}" for before in reversed(range(int(attempt)))]


def goes_on(store: Any, prefix: str, others: list[int], newcomers: list[str], timeout_s: float) -> bool:
    """Whether these hosts still are in an earlier attempt. Takes a lease, less if any of the newcomers is there."""
    began = changed = time.monotonic()
    shown = _signs(store, prefix, others)
    while time.monotonic() - began < lease_s(timeout_s):
        if any(store.check([key]) for key in newcomers):
            return False
        time.sleep(beat_s(timeout_s) / 2)
        now = _signs(store, prefix, others)
        if now != shown:
            shown, changed = now, time.monotonic()
    return changed > began + lease_s(timeout_s) / 2  # not merely agents that were about to end


def _signs(store: Any, prefix: str, hosts: list[int]) -> list[bytes]:
    """What these hosts' agents have last written. Only that it changes is of interest."""
    keys = [place_of(prefix, host) for host in hosts]
    return [store.get(key) for key in keys if store.check([key])]
