"""A host that was started again, with nothing left of what it knew. Owns the question and the answer in the store.

It asks where the others are, gets the ledger at one place in the log of all hosts, and reads on from there; weights
come as they do for any host that was away. Whoever answers gives up the life before: two must not speak for one host.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from outpace.engines.arena.arena import Files
from outpace.engines.arena.layout import Arena, ArenaLayout
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.engines.cluster.desk import Desk, Progress
from outpace.engines.cluster.sealing import SealedStore, Tampered
from outpace.engines.cluster.timing import lease_s
from outpace.errors import TimedOut
from outpace.interface import Contents

log = logging.getLogger("outpace")

PLACE = "returning"  #: in the store, beside the log
_ASKED = "asked"  # how often anybody has asked


class Standing(NamedTuple):
    """A place between two entries of the log of all hosts."""

    entries: int
    position: int  #: bytes of a host's log that they are
    chain: bytes  #: seal of the last of them
    ledger: dict[str, Any]  #: after them


class Question(NamedTuple):
    """A host that was started again wants to know where the others are."""

    host: int
    number: str  #: each is another one, so that no answer can be taken for a later one's


def ask(store: SealedStore, host: int, timeout_s: float) -> Standing:
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
        return Standing(told["entries"], told["position"], bytes.fromhex(told["chain"]), told["ledger"])
    raise TimedOut(
        f"host {host} was started again, and no other host has answered it for {timeout_s:.0f} s. If all were "
        "started again, give them a store of their own: another port, or the launcher's whole restart"
    )


def begin_at(standing: Standing, files: Files, layout: ArenaLayout) -> None:
    """Makes a new arena one in which everything up to there was read and given back."""
    memory = Arena(files.arena, layout)
    os.ftruncate(files.log, standing.position)  # a hole: whoever reads there takes the ledger from the snapshot
    snapshots, last = SnapshotStore(memory), layout.world  # the buffer that is claimed last
    snapshots.write(last, Contents([], {}), standing.ledger, standing.position)
    snapshots.announce(last)
    Desk(memory).progress = Progress(standing.entries, standing.position, chain=standing.chain)


class Reception:
    """Where an agent hears of hosts that were started again."""

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
        """This agent answers it."""
        self._taken.add(question.number)

    def tell(self, question: Question, standing: Standing) -> None:
        """The answer."""
        told = {**standing._asdict(), "chain": standing.chain.hex()}
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
