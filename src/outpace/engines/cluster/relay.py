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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from outpace.engines.cluster.group import Group
from outpace.engines.cluster.store_log import MOST_BYTES
from outpace.protocol.shared_log import Batch, Forward, children, parent

_HEAD = struct.Struct("<IIQ")  # bytes that follow, the root's place in the group, number of the entry
_BATCH = struct.Struct("<IQQI")  # host, life, start, bytes that follow
_NEAR, _FAR = 4, 8  # tags: between neighbours in the first host's tree, and between any two others
_NO_ENTRY = (1 << 64) - 1  # it is a batch
_PAUSE_S = 0.05  #: after a message that failed, because somebody is gone; between looks at what was sent
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
    """One agent's. `receive` is called with what the others send, from threads of its own."""

    def __init__(self, group: Group, receive: Callable[[Offered | Passed], None]) -> None:
        self._group, self._receive = group, receive
        self._place, count = group.hosts.index(group.host), len(group.hosts)
        near = children(0, self._place, count) + ([parent(0, self._place, count)] if self._place else [])
        self._near = {group.hosts[place] for place in near}
        self._under_way: queue.SimpleQueue[tuple[Any, torch.Tensor]] = queue.SimpleQueue()
        listened_to = [*self._near, *([None] if len(near) < count - 1 else [])]
        for host in listened_to:
            threading.Thread(target=self._listen, args=(host,), name=f"relay from {host}", daemon=True).start()
        threading.Thread(target=self._keep, name="relay", daemon=True).start()

    def forward(self, step: Forward) -> None:
        parts = (_BATCH.pack(b.host, b.life, b.start, len(b.records)) + b.records for b in step.batches)
        self._send([step.host], _NO_ENTRY, self._group.hosts.index(step.leader), b"".join(parts))

    def spread(self, number: int, sealed: bytes) -> None:
        """An entry that this host has written."""
        self._pass_on(self._place, number, sealed)

    def _pass_on(self, root: int, number: int, sealed: bytes) -> None:
        hosts = self._group.hosts
        self._send([hosts[place] for place in children(root, self._place, len(hosts))], number, root, sealed)

    def _send(self, hosts: Sequence[int], number: int, root: int, data: bytes) -> None:
        """Does not block, whether these hosts take it or not."""
        message = torch.frombuffer(bytearray(_HEAD.pack(len(data), root, number) + data), dtype=torch.uint8)
        for host in hosts:
            try:
                work = self._group.begin_to_send(message, host, _NEAR if host in self._near else _FAR)
            except RuntimeError as error:
                log.debug("a message to host %d was lost: %s", host, error)
            else:
                self._under_way.put((work, message))

    def _keep(self) -> None:
        """Keeps messages until they are sent. Nobody waits for that, so that many are looked at together."""
        while not self._group.is_over:
            work, _ = self._under_way.get()
            try:
                self._group.await_sent(work)
            except RuntimeError as error:
                log.debug("a message was lost: %s", error)
            if self._under_way.empty():
                time.sleep(_PAUSE_S)

    def _listen(self, host: int | None) -> None:
        """To a neighbour, whose next message is expected before it is sent and so takes one way; else to all others."""
        message = torch.zeros(_HEAD.size + MOST_BYTES, dtype=torch.uint8)
        found = memoryview(message.numpy())  # type: ignore[arg-type]
        while not self._group.is_over:
            try:
                if host is None:
                    self._group.receive_from_any(message, _FAR)
                else:
                    self._group.receive(message, host, _NEAR)
            except RuntimeError as error:
                log.debug("a message was lost: %s", error)
                time.sleep(_PAUSE_S)
                continue
            nbytes, root, number = _HEAD.unpack_from(found)
            data = bytes(found[_HEAD.size : _HEAD.size + nbytes])
            if number == _NO_ENTRY:
                self._receive(Offered(self._group.hosts[root], _batches(data)))
            else:
                self._pass_on(root, number, data)
                self._receive(Passed(number, data))
