"""The one log of all hosts, in the store: entries of several records, numbered, first writer wins.

Every agent appends what lies in its host's inbox and reads what the others appended. An entry says up to where its
host's inbox is in the log, so that nothing gets in twice, whoever was killed or cut off when. Owns the entries and
their seals; knows nothing of what records mean.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from torch.distributed import DistStoreError

from outpace.engines.cluster.sealing import SEAL_BYTES, seal, unseal
from outpace.engines.cluster.shared_page import Progress

_HEAD = struct.Struct("<HxxIQ")  # host, which of its lives, end of its inbox in the log
MOST_RECORDS = 512  #: in one entry
_LOOK = timedelta(seconds=5)  #: a reader waits so long at once


class Entry(NamedTuple):
    number: int
    host: int
    life: int  #: sequence number of its start: a host may be restarted
    inbox: int  #: bytes of its writer's inbox that are in the log with this
    records: bytes
    chain: bytes  #: its seal, which the next one's goes on from


class StoreLog:
    """One agent's way to the log. `accept` is called with every entry, in order, from either thread."""

    def __init__(
        self,
        store: Any,
        prefix: str,
        key: bytes,
        host: int,
        life: int,
        progress: Progress,
        accept: Callable[[Entry], None],
    ) -> None:
        self._writer, self._reader = store, store.clone()
        self._prefix, self._key, self._me = prefix, key, (host, life)
        self._accept = accept
        self._lock = threading.Lock()
        self._next, self._chain = progress.entries, progress.chain
        self._cut = progress.entries

    def commit(self, inbox_end: int, records: bytes) -> None:
        """Tries to make these the next entry. Whoever was first, that entry is taken in."""
        with self._lock:
            number, chain = self._next, self._chain
        value = _HEAD.pack(*self._me, inbox_end) + records
        mine = seal(self._key, self._at(number), value, chain)
        self._take(number, self._writer.compare_set(self._at(number), b"", mine))

    def read(self) -> bool:
        """Waits a while for the next entry and takes it in. False if none came."""
        number = self._next
        try:
            self._reader.wait([self._at(number)], _LOOK)
        except DistStoreError as error:
            if "timeout" not in str(error):
                raise
            return False
        self._take(number, self._reader.get(self._at(number)))
        return True

    def cut(self, number: int) -> None:
        """Takes entries below out of the store: every host has them."""
        for old in range(self._cut, number):
            self._writer.delete_key(self._at(old))
        self._cut = max(self._cut, number)

    def _take(self, number: int, sealed: bytes) -> None:
        with self._lock:
            if number != self._next:
                return  # the other thread had it first
            value = unseal(self._key, self._at(number), sealed, self._chain)
            host, life, inbox = _HEAD.unpack_from(value)
            self._next, self._chain = number + 1, sealed[-SEAL_BYTES:]
            self._accept(Entry(number, host, life, inbox, value[_HEAD.size :], self._chain))

    def _at(self, number: int) -> str:
        return f"{self._prefix}/log/{number}"
