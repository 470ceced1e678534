"""Short messages between the agents of a group: batches towards whoever writes them, and entries from whoever did.

An entry goes down a tree with its writer as the root, so that neither the store nor one agent serves all others. Any of
it may be lost: the store has every entry, and a batch that does not get into the log is sent again. So nothing here is
acknowledged, and what belongs to a group that is over is left to itself.
"""

from __future__ import annotations

import logging
import queue
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from outpace.engines.cluster.group import Group
from outpace.engines.cluster.store_log import MOST_BYTES
from outpace.protocol.shared_log import Batch, Forward, children

_HEAD = struct.Struct("<IIQ")  # bytes that follow, the root's place in the group, number of the entry
_BATCH = struct.Struct("<IQQI")  # host, life, start, bytes that follow
_TAG = 4  # 1 to 3 are those of transfers
_NO_ENTRY = (1 << 64) - 1  # it is a batch
_PAUSE_S = 0.05  #: after a message that failed, because somebody is gone
_SETTLE_S, _LOOK_S = 0.01, 0.0002
log = logging.getLogger("outpace")


class Passed(NamedTuple):
    """An entry on its way."""

    number: int
    sealed: bytes


class Offered(NamedTuple):
    """Batches that another agent asks this one to write, or to pass on to the leader."""

    leader: int
    batches: list[Batch]


def _batches(data: bytes) -> list[Batch]:
    found, at = [], 0
    while at < len(data):
        host, life, start, nbytes = _BATCH.unpack_from(data, at)
        at += _BATCH.size + nbytes
        found.append(Batch(host, life, start, data[at - nbytes : at]))
    return found


class Relay:
    """One agent's. `receive` is called with what the others send, from a thread of its own."""

    def __init__(self, group: Group, receive: Callable[[Offered | Passed], None]) -> None:
        self._group, self._receive = group, receive
        self._place = group.hosts.index(group.host)
        self._senders: dict[int, queue.SimpleQueue[bytes]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="relay", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._group.is_over

    def forward(self, step: Forward) -> None:
        parts = (_BATCH.pack(b.host, b.life, b.start, len(b.records)) + b.records for b in step.batches)
        self._send(step.host, _NO_ENTRY, self._group.hosts.index(step.leader), b"".join(parts))

    def spread(self, number: int, sealed: bytes) -> None:
        """An entry that this host has written."""
        self._pass_on(self._place, number, sealed)

    def settle(self) -> None:
        """Waits until somebody has taken all that was passed on to it, but not for long: nobody may be there to take
        it. So a leader that has too much to say says more at once."""
        began = time.monotonic()
        while all(not waiting.empty() for waiting in list(self._senders.values())):
            if not self._senders or time.monotonic() - began > _SETTLE_S:
                return
            time.sleep(_LOOK_S)

    def _pass_on(self, root: int, number: int, sealed: bytes) -> None:
        for place in children(root, self._place, len(self._group.hosts)):
            self._send(self._group.hosts[place], number, root, sealed)

    def _send(self, host: int, number: int, root: int, data: bytes) -> None:
        with self._lock:
            if host not in self._senders:
                self._senders[host] = queue.SimpleQueue()
                arguments = (host, self._senders[host])
                threading.Thread(target=self._deliver, args=arguments, name=f"relay to {host}", daemon=True).start()
        self._senders[host].put(_HEAD.pack(len(data), root, number) + data)

    def _deliver(self, host: int, waiting: queue.SimpleQueue[bytes]) -> None:
        """Blocks where that host takes nothing, which is nobody else's trouble."""
        try:
            while not self._group.is_over:
                self._group.send(torch.frombuffer(bytearray(waiting.get()), dtype=torch.uint8), host, _TAG)
        except RuntimeError as error:
            log.debug("host %d is sent no more messages: %s", host, error)

    def _listen(self) -> None:
        message = torch.zeros(_HEAD.size + MOST_BYTES, dtype=torch.uint8)
        while not self._group.is_over:
            try:
                self._group.receive_from_any(message, _TAG)
            except RuntimeError as error:
                log.debug("a message was lost: %s", error)
                time.sleep(_PAUSE_S)
                continue
            nbytes, root, number = _HEAD.unpack(bytes(message[: _HEAD.size].numpy()))
            data = bytes(message[_HEAD.size : _HEAD.size + nbytes].numpy())
            if number == _NO_ENTRY:
                self._receive(Offered(self._group.hosts[root], _batches(data)))
            else:
                self._pass_on(root, number, data)
                self._receive(Passed(number, data))
