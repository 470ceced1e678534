"""Which hosts are still there, and the timeouts that follow from the user's one bound.

Each host writes a growing number into the store; silence decides. No clock of another host is looked at. A host that
was cut off finds that the others went on; one that was only slow finds that nobody minded. The first living host looks
at all others, and those at the first few, so that what a lease costs the store grows with the hosts.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from outpace.engines.cluster.sealing import Tampered, seal, unseal
from outpace.errors import OutpaceError

SHORTEST_LEASE_S, LONGEST_LEASE_S = 2.0, 5.0
LONGEST_SILENCE_S = 60.0  #: of the store
WATCHED_BY_ALL = 3  #: the first living hosts: so many may be lost at once and be missed within one lease
log = logging.getLogger("outpace")


def lease_s(timeout_s: float) -> float:
    """How long a host may be silent before the others give it up: a tenth of what a rank would wait.

    Longer than an agent takes to restart, short enough for ranks to wait through.
    """
    return min(LONGEST_LEASE_S, max(SHORTEST_LEASE_S, timeout_s / 10))


def beat_s(timeout_s: float) -> float:
    return lease_s(timeout_s) / 8


def store_s(timeout_s: float) -> float:
    """How long the store may be silent. Less than a rank waits, so that the rank learns the reason."""
    return min(LONGEST_SILENCE_S, timeout_s / 2)


def group_s(timeout_s: float) -> float:
    """How long connections between agents may be silent. Beyond the lease, which decides who is waited for."""
    return max(timeout_s, 4 * lease_s(timeout_s))


def watched(host: int, living: list[int], count: int) -> list[int]:
    """The hosts whose signs of life one host looks at.

    >>> watched(0, [0, 1, 2, 3], 5), watched(3, [0, 1, 2, 3], 5)
    ([0, 1, 2, 3, 4], [0, 1, 2])
    """
    return list(range(count)) if living[:1] == [host] else living[:WATCHED_BY_ALL]


class Leases:
    def __init__(self, store: Any, prefix: str, key: bytes, host: int, life: int, lease_s: float) -> None:
        self._store, self._prefix, self._key, self._host, self._life = store, prefix, key, host, life
        self._lease_s = lease_s
        self._seen: dict[int, tuple[tuple[int, int], float]] = {}  # host -> its agent and number, and since when
        self._beats = 0
        self._there: set[int] = set()  # hosts that have given a sign of life
        self._entries: dict[int, int] = {}

    def beat(self, entries: int) -> None:
        """Says that this host is there, and how many entries of the log it has. Whoever does has looked before."""
        self._beats += 1
        value = b"".join(number.to_bytes(8, "little") for number in (self._beats, entries, self._life))
        place = self._at(self._host)
        self._store.set(place, seal(self._key, place, value))

    def silent(self, agents: dict[int, int]) -> list[int]:
        """Those of these hosts, given with the numbers of their agents, that have been silent for a lease.

        That an agent begins is a sign of life, too: one that was cut off may get back one connection before another.
        Raises if a later life of this host has given signs.
        """
        others = [host for host in agents if host != self._host]
        began = time.monotonic()
        values = self._values([self._host, *others])
        now = time.monotonic()
        for host in others:
            beats, entries, _ = self._read(host, values[host]) if host in values else (-1, 0, 0)
            if self._note(host, (agents[host], beats), now) and host in values:
                self._entries[host] = entries
        if self._host in values:
            beats, _, life = self._read(self._host, values[self._host])
            if life > self._life:
                raise OutpaceError(replaced(self._host))
            self._beats = max(self._beats, beats)  # of an agent before this one
        if now - began > self._lease_s / 2:  # it is this host that was away: begin anew
            self._seen = {host: (sign, now) for host, (sign, _) in self._seen.items()}
        return [host for host in others if now - self._seen[host][1] > self._lease_s]

    def _values(self, hosts: list[int]) -> dict[int, bytes]:
        """What these hosts have written, if anything. One look at the store when all have."""
        self._there |= {host for host in hosts if host not in self._there and self._store.check([self._at(host)])}
        there = [host for host in hosts if host in self._there]
        values = self._store.multi_get([self._at(host) for host in there]) if there else []
        return dict(zip(there, values, strict=True))

    def had_by_all(self, hosts: list[int], mine: int) -> int:
        return min([mine, *(self._entries.get(host, 0) for host in hosts if host != self._host)])

    def _note(self, host: int, sign: tuple[int, int], now: float) -> bool:
        """Whether that is a new sign of life. An old one that was written again does not count."""
        is_new = host not in self._seen or self._seen[host][0] < sign
        if is_new:
            self._seen[host] = (sign, now)
        return is_new

    def _read(self, host: int, sealed: bytes) -> tuple[int, int, int]:
        """(beats, entries, life). A forged value is no sign of life; the host soon writes again."""
        try:
            value = unseal(self._key, self._at(host), sealed)
        except Tampered as error:
            log.warning("%s", error)
            return -1, 0, 0
        beats, entries, life = (int.from_bytes(value[at : at + 8], "little") for at in (0, 8, 16))
        return beats, entries, life

    def _at(self, host: int) -> str:
        return place_of(self._prefix, host)


def replaced(host: int) -> str:
    return (
        f"another process has taken the place of host {host}: the host was restarted while this one still ran, maybe "
        "cut off from the others. What this host computed since is lost; its ranks end here"
    )


def place_of(prefix: str, host: int) -> str:
    return f"{prefix}/alive/{host}"
