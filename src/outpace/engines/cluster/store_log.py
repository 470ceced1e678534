"""The log of all hosts, in the store: numbered entries of several batches, written by compare-and-set.

A batch is followed by a record that says up to where its host's inbox is in the log, so that the log itself says how
much of whom it has. Owns the entries and their seals; who writes what is decided in `protocol.shared_log`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from torch.distributed import DistStoreError

from outpace.engines.arena.log import RECORD_BYTES, decode, encode
from outpace.engines.cluster.sealing import SEAL_BYTES, seal, unseal
from outpace.engines.cluster.shared_page import Progress
from outpace.protocol.events import Commit, Event
from outpace.protocol.shared_log import Batch

MOST_RECORDS = 512  #: in one entry
MOST_BYTES = 2 * MOST_RECORDS * RECORD_BYTES + SEAL_BYTES  #: of one entry, if each record came alone
_PAUSE_S = 0.01
_LOOK = timedelta(seconds=5)  #: a reader waits so long at once


def pack(batches: Sequence[Batch]) -> bytes:
    return b"".join(batch.records + encode(Commit(batch.host, batch.life, batch.end)) for batch in batches)


class Entry(NamedTuple):
    number: int
    records: bytes
    chain: bytes  #: its seal, which the next one's goes on from
    events: list[Event]  #: what the records are

    def batches(self) -> list[tuple[Batch, list[Event]]]:
        """Each with its events. What follows the last of them is no batch."""
        found, start = [], 0
        for place, event in enumerate(self.events):
            if isinstance(event, Commit):
                mine = self.records[start * RECORD_BYTES : place * RECORD_BYTES]
                batch = Batch(event.host, event.life, event.inbox - len(mine), mine)
                found.append((batch, self.events[start:place]))
                start = place + 1
        return found


class StoreLog:
    """One agent's way to the log. `accept` is called with every entry, in order, from any thread."""

    def __init__(
        self, store: Any, prefix: str, key: bytes, progress: Progress, accept: Callable[[Entry], None]
    ) -> None:
        self._writer, self._reader, self._cutter = store, store.clone(), store.clone()
        self._reader.set_timeout(_LOOK)
        self._prefix, self._key = prefix, key
        self._accept = accept
        self._taken = threading.Condition()
        self._next, self._chain = progress.entries, progress.chain
        self._cut = progress.entries
        self._early: dict[int, bytes] = {}  # entries that others have passed on before those that come first

    def write(self, batches: Sequence[Batch]) -> tuple[int, bytes] | None:
        """Tries to make these the next entry. Whoever was first, that entry is taken in. Returns its number and what
        is in the store if it was this one."""
        with self._taken:
            number, chain = self._next, self._chain
        mine = seal(self._key, self._at(number), pack(batches), chain)
        found = self._writer.compare_set(self._at(number), b"", mine)
        self._take(number, found)
        return (number, mine) if found == mine else None

    def read(self) -> bool:
        """Waits a while for the next entry in the store and takes it in. False if none came."""
        number = self._next
        try:
            found = self._reader.get(self._at(number))
        except DistStoreError as error:
            if "timeout" not in str(error):
                raise
            return False
        self._take(number, found)
        return True

    def pass_in(self, number: int, sealed: bytes) -> None:
        """An entry that another agent has passed on."""
        with self._taken:
            if number > self._next:
                self._early[number] = sealed
                self._taken.notify_all()
        self._take(number, sealed)

    def follow(self, seconds: float) -> None:
        """Waits so long for entries that are passed on. Looks into the store if none comes, or one was left out."""
        with self._taken:
            number = self._next
            self._taken.wait_for(lambda: self._next > number or self._early, seconds)
            if self._next > number:
                return
        if self._reader.check([self._at(number)]):
            self.read()
        elif self._early:
            time.sleep(_PAUSE_S)

    def cut(self, number: int, most_s: float) -> None:
        """Takes entries below out of the store: every host has them. What takes longer is left for the next time: when
        a host comes back after long, there may be many, and whoever calls has to give signs of life."""
        began = time.monotonic()
        while self._cut < number and time.monotonic() - began < most_s:
            self._cutter.delete_key(self._at(self._cut))
            self._cut += 1

    def _take(self, number: int, sealed: bytes) -> None:
        with self._taken:
            while number == self._next:  # else another thread had it first
                records = unseal(self._key, self._at(number), sealed, self._chain)
                self._next, self._chain = number + 1, sealed[-SEAL_BYTES:]
                self._accept(Entry(number, records, self._chain, decode(records)))
                number, sealed = number + 1, self._early.pop(number + 1, b"")
                if not sealed:
                    break
            self._early = {number: early for number, early in self._early.items() if number > self._next}
            self._taken.notify_all()

    def _at(self, number: int) -> str:
        return f"{self._prefix}/log/{number}"
