"""Which start of the job a rank takes part in, who runs on which host, and how a restarted host comes back.

A job may be started more than once on one store: all of it by its launcher, or one host while the others go on, again
and again. So the store counts the starts. A rank that was in the current one already looks whether the others still
are: then it comes back to them. If they are silent, or were all restarted, too, the next start begins.

A restarted host has nothing left of what it knew. It asks where the others are, gets the ledger at one position in the
log of all hosts, and reads on from there; weights come as they do for any host that was away. Whoever answers gives up
the life before: two must not speak for one host.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from outpace.engines.arena.arena import Files
from outpace.engines.arena.kernel import Arena
from outpace.engines.arena.layout import ArenaLayout
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.engines.cluster.leases import beat_s, lease_s, place_of
from outpace.engines.cluster.sealing import SealedStore, Tampered
from outpace.engines.cluster.shared_page import Progress, SharedPage
from outpace.engines.cluster.supervisor import cluster_of
from outpace.errors import OutpaceError, TimedOut
from outpace.interface import Contents
from outpace.job.environment import Place
from outpace.job.store import MeetingStore
from outpace.protocol.ledger_view import snapshot_buffers

log = logging.getLogger("outpace")
PLACE = "returning"  #: in the store, beside the log
_ASKED = "asked"  # how often anybody has asked


class Start(NamedTuple):
    """Where the ranks of one optimizer meet, and who is asking."""

    inner: MeetingStore
    store: SealedStore  #: the same, with seals
    name: str
    place: Place
    timeout_s: float

    def at(self, what: str) -> str:
        return f"{self.name}/{what}"

    def has(self, whats: list[str]) -> bool:
        return self.store.check([self.at(what) for what in whats])

    def expect(self, whats: list[str], who: Callable[[], str]) -> list[bytes]:
        """The values of these keys, once they are there. Names who did not come in time."""
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
            f"{place.name} this rank was on host {before} before it was restarted. Start it there, or name "
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


class LogPosition(NamedTuple):
    """A place between two entries of the log of all hosts."""

    entries: int
    position: int  #: bytes of a host's log that they are
    chain: bytes  #: seal of the last of them
    ledger: dict[str, Any]  #: after them


class Question(NamedTuple):
    host: int
    number: str  #: each is another one, so that no answer can be taken for a later one's


def ask(store: SealedStore, host: int, timeout_s: float) -> LogPosition:
    """Where the others are. Asks again while nobody answers: whoever was about to may have been lost."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        number = secrets.token_hex(8)
        store.set(_asks(host), number)
        store.add(_ASKED, 1)
        try:
            store.wait([_told(number)], timedelta(seconds=2 * lease_s(timeout_s)))
        except TimedOut:
            continue
        told = json.loads(store.get(_told(number)))
        store.delete_key(_asks(host))  # before this host is one of those who live: nobody gives it up again for it
        store.delete_key(_told(number))
        return LogPosition(told["entries"], told["position"], bytes.fromhex(told["chain"]), told["ledger"])
    raise TimedOut(
        f"host {host} was restarted, and no other host has answered it for {timeout_s:.0f} s. If all were "
        "restarted, give them a store of their own: another port, or the launcher's whole restart"
    )


def begin_at(log_position: LogPosition, files: Files, layout: ArenaLayout) -> None:
    """Makes a new arena one in which everything up to there was read and given back."""
    memory = Arena(files.arena, layout)
    os.ftruncate(files.log, log_position.position)  # a hole: whoever reads there takes the ledger from the snapshot
    snapshots, last = SnapshotStore(memory), snapshot_buffers(layout.world) - 1  # the buffer that is claimed last
    snapshots.write(last, Contents([], {}), log_position.ledger, log_position.position)
    snapshots.announce(last)
    SharedPage(memory).progress = Progress(log_position.entries, log_position.position, chain=log_position.chain)


class JoinHandler:
    def __init__(self, store: SealedStore) -> None:
        self._store = store
        self._heard = 0
        self._waiting: list[Question] = []
        self._taken: set[str] = set()

    def questions(self, hosts: Iterable[int]) -> list[Question]:
        """What these hosts have asked and this agent has not taken on. One look at the store when nobody asks."""
        asked = self._store.add(_ASKED, 0)
        if asked != self._heard or self._waiting:
            self._heard = asked
            found = [Question(host, number) for host in hosts if (number := self._asked_by(host))]
            self._waiting = [question for question in found if question.number not in self._taken]
        return self._waiting

    def take(self, question: Question) -> None:
        self._taken.add(question.number)

    def tell(self, question: Question, log_position: LogPosition) -> None:
        told = {**log_position._asdict(), "chain": log_position.chain.hex()}
        self._store.set(_told(question.number), json.dumps(told))

    def _asked_by(self, host: int) -> str:
        if not self._store.check([_asks(host)]):
            return ""
        try:
            return self._store.get(_asks(host)).decode()
        except Tampered as error:
            log.warning("%s", error)
            return ""


def _asks(host: int) -> str:
    return f"asks/{host}"


def _told(number: str) -> str:
    return f"told/{number}"
