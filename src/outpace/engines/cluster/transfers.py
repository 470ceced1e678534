"""Data from host to host: whoever needs it asks its source, which reads it from its arena. Owns both ends.

Asking keeps no state anywhere, so that an agent that was killed or cut off just asks again. What arrives is put into
private memory first: a transfer of an old group may still end when its place in the arena holds something else.
"""

from __future__ import annotations

import logging
import threading

import torch

from outpace.engines.arena.layout import Arena
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.engines.cluster.cargo import SNAPSHOT, Cargo, region
from outpace.engines.cluster.group import Group

log = logging.getLogger("outpace")

_REQUEST, _SIZE, _DATA = 1, 2, 3  # tags


class Transfers:
    """One host's end of all transfers within one group."""

    def __init__(self, group: Group, memory: Arena, snapshots: SnapshotStore, positions: dict[int, int]) -> None:
        self._group = group
        self._memory = memory
        self._snapshots = snapshots
        self.fetched = dict(positions)  #: host -> up to which place in the log it has what goes with the records
        self._moved = threading.Condition()
        for host in group.hosts:
            if host != group.host:
                threading.Thread(target=self._serve, args=(host,), name=f"serve {host}", daemon=True).start()

    def fetch(self, cargo: Cargo, position: int) -> None:
        """Brings the data of the record at a position here. All before that position is here."""
        data = self._group.fetch(lambda: self._ask(cargo, position))
        for number in cargo.places:
            offset, nbytes = region(self._memory.layout, cargo.what, number)
            self._memory.touch(offset, min(nbytes, data.numel()))
            self._memory.region(offset, data.numel()).copy_(data)

    def until_fetched(self, host: int, position: int) -> None:
        """Waits until a host has what goes with the record at a position, unless the group is over."""
        with self._moved:
            while self.fetched.get(host, position + 1) <= position and not self._group.is_over:
                self._moved.wait(0.05)

    def _ask(self, cargo: Cargo, position: int) -> torch.Tensor:
        group, size = self._group, torch.zeros(1, dtype=torch.int64)
        group.send(torch.tensor([*cargo.request, position], dtype=torch.int64), cargo.source, _REQUEST)
        group.receive(size, cargo.source, _SIZE)
        data = torch.empty(int(size), dtype=torch.uint8)
        if data.numel():
            group.receive(data, cargo.source, _DATA)
        return data

    def _serve(self, host: int) -> None:
        """Answers one host, one request after the other, for as long as the group lasts."""
        group, request = self._group, torch.zeros(3, dtype=torch.int64)
        try:
            while not group.is_over:
                group.receive(request, host, _REQUEST)
                what, number, position = request.tolist()
                self._note(host, position)
                data = self._data(what, number)
                group.send(torch.tensor([data.numel()], dtype=torch.int64), host, _SIZE)
                if data.numel():
                    group.send(data, host, _DATA)
                self._note(host, position + 1)
        except RuntimeError as error:
            log.debug("host %d is not served any more: %s", host, error)

    def _note(self, host: int, position: int) -> None:
        with self._moved:
            self.fetched[host] = max(position, self.fetched.get(host, 0))
            self._moved.notify_all()

    def _data(self, what: int, number: int) -> torch.Tensor:
        offset, nbytes = region(self._memory.layout, what, number)
        if what == SNAPSHOT:
            nbytes = self._snapshots.size(number)
        return self._memory.region(offset, nbytes)
