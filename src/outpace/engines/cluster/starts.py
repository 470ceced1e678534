"""Which start of the job a rank takes part in, and who runs on which host.

A job may be started more than once on one store: all of it by its launcher, or one host while the others go on, again
and again, each counted by nobody or by its own launcher alone. So the store counts the starts. A rank that was in the
current one already looks whether the others still are: then it comes back to them. If they are silent, or were all
started again, too, the next start begins. Owns the count, and what ranks say of themselves in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from outpace.engines.cluster.launch_spec import cluster_of
from outpace.engines.cluster.leases import place_of
from outpace.engines.cluster.sealing import SealedStore
from outpace.engines.cluster.timing import beat_s, lease_s
from outpace.errors import OutpaceError, TimedOut
from outpace.job.environment import Place
from outpace.job.store import MeetingStore


class Start(NamedTuple):
    """Where the ranks of one optimizer meet, and who is asking."""

    inner: MeetingStore
    store: SealedStore  #: the same, with seals
    name: str
    place: Place
    timeout_s: float

    def at(self, what: str) -> str:
        """A place in the store."""
        return f"{self.name}/{what}"

    def has(self, whats: list[str]) -> bool:
        """Whether all of these are there."""
        return self.store.check([self.at(what) for what in whats])

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


def start_of(inner: MeetingStore, key: bytes, number: str, place: Place, timeout_s: float) -> Start:
    """The start that this rank takes part in, of the job's optimizer of that number."""
    store, count_at = SealedStore(inner, key, "outpace"), f"starts/{number}"
    while True:
        count = store.compare_set(count_at, "", "0").decode()
        start = Start(inner, store, f"{count}/{number}", place, timeout_s)
        if not start.has([_where(place.rank)]) or not start.has(_everybody(place)):
            return start  # this rank was not in it, or it has not begun
        if _goes_on(start, lambda count=count: store.get(count_at).decode() == count):  # type: ignore[misc]
            return start
        store.compare_set(count_at, count, str(int(count) + 1))


def hosts_of(start: Start) -> tuple[int, ...]:
    """The host of every rank, numbered in the order of their first ranks. Blocks until all ranks have said theirs."""
    place = start.place
    before = start.store.compare_set(start.at(_where(place.rank)), "", place.host).decode()
    if before != place.host:
        raise OutpaceError(
            f"{place.name} this rank was on host {before} before it was started again. Start it there, or name "
            f"this host so: OUTPACE_HOST={before}"
        )
    everybody = _everybody(place)

    def missing() -> str:
        return f"ranks {[rank for rank, key in enumerate(everybody) if not start.has([key])]}"

    names = [value.decode() for value in start.expect(everybody, missing)]
    numbers = {host: number for number, host in enumerate(dict.fromkeys(names))}
    return tuple(numbers[host] for host in names)


def _goes_on(start: Start, is_current: Callable[[], bool]) -> bool:
    """Whether the hosts of a start that has begun are still in it. Takes half a lease, up to two if they are not."""
    hosts = hosts_of(start)
    everywhere = [f"again/{host}" for host in range(max(hosts) + 1)]
    again = start.at(everywhere[hosts[start.place.rank]])
    start.store.set(again, "looking")
    lease = lease_s(start.timeout_s)
    began, shown = time.monotonic(), _signs(start, len(everywhere))
    while is_current():
        time.sleep(beat_s(start.timeout_s) / 2)
        waited, signs = time.monotonic() - began, _signs(start, len(everywhere))
        if waited < lease / 2:
            shown = signs  # it may still be agents that are about to end
        elif signs != shown or waited > start.timeout_s:
            break  # if there never was a sign, whoever is to answer is still starting
        if start.has(everywhere) or (signs and waited > 2 * lease):
            return False
    start.store.delete_key(again)
    return is_current()


def _signs(start: Start, hosts: int) -> list[bytes]:
    """What the agents of all hosts have last written. Only that it changes is of interest."""
    keys = [place_of(cluster_of(start.name), host) for host in range(hosts)]
    return [start.inner.get(key) for key in keys if start.inner.check([key])]


def _everybody(place: Place) -> list[str]:
    return [_where(rank) for rank in range(place.world)]


def _where(rank: int) -> str:
    return f"where/{rank}"
