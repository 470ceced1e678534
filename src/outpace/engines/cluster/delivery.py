"""Copies the log of all hosts into this host's log, record by record, each once its data is here.

Owns the order: what goes with a record is fetched before the record is written, and a rank's next publication is not
written before the hosts that need the last one have fetched it. The agent's own ledger is folded from this host's log,
like every rank's, so that a new agent knows what the last one knew.

Whoever needs data asks its source, which reads it from its arena. Asking keeps no state anywhere: an agent that was
killed or cut off just asks again. What arrives is put into private memory first: a transfer of an old group may still
end when its place in the arena holds something else.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from outpace.engines.arena.kernel import Arena, Bell
from outpace.engines.arena.layout import ArenaLayout
from outpace.engines.arena.log import RECORD_BYTES, ArenaLog, append
from outpace.engines.arena.memory import tag
from outpace.engines.arena.snapshot import SnapshotStore
from outpace.engines.cluster.group import Abandoned, Group
from outpace.engines.cluster.host_means import HostMeans
from outpace.engines.cluster.joining import LogPosition
from outpace.engines.cluster.membership import Membership
from outpace.engines.cluster.shared_page import Inbox, Progress, SharedPage
from outpace.engines.cluster.store_log import Entry
from outpace.errors import OutpaceError
from outpace.protocol.events import Agent, Commit, Event, Finish, Publish, Snapshot, Swap, Sync
from outpace.protocol.hosts import is_addressed
from outpace.protocol.ledger import Ledger
from outpace.protocol.published import Frozen
from outpace.protocol.round import Round

AT_THE_END = 2
ROW, BUFFERS, SNAPSHOT = range(3)
WithData = Publish | Swap | Snapshot | Sync | Finish  #: events that data goes with
log = logging.getLogger("outpace")
_REQUEST, _SIZE, _DATA = 1, 2, 3  # tags


class Payload(NamedTuple):
    """Data that goes with a record: whose, what, and where it goes in the memory of whoever gets it."""

    source: int  #: host
    what: int
    number: int  #: row, buffer row or snapshot buffer, at its source
    places: tuple[int, ...]  #: the same here


def payload_of(event: WithData, ledger: Ledger, has_buffers: bool) -> Payload | None:
    """What goes with a record that comes next after what the ledger knows. None if nothing does."""
    source = ledger.hosts.of[event.rank]
    if isinstance(event, Publish) and ledger.rules.averages_hosts:
        return None  # a mean goes with the record that freezes it
    if isinstance(event, Publish):
        row = ledger.published.next_row(event.rank)
        return Payload(source, ROW, row, (row,))
    if isinstance(event, Swap):
        rows = ledger.published.shelves[event.rank].spares[:2]
        return Payload(source, ROW, rows[0], tuple(rows))
    if isinstance(event, Snapshot):
        return Payload(source, SNAPSHOT, event.buffer, (ledger.snapshots.free_buffer(-1),))
    if not has_buffers:
        return None
    parity = event.generation % 2 if isinstance(event, Sync) else AT_THE_END
    number = parity * len(ledger.hosts.of) + event.rank
    return Payload(source, BUFFERS, number, (number,))


def is_for(host: int, event: WithData, ledger: Ledger) -> bool:
    """Whether a host gets the data of a record that comes next after what the ledger knows."""
    if host not in ledger.hosts.living or host == ledger.hosts.of[event.rank]:
        return False
    if isinstance(event, Snapshot):
        return event.has_base and host in ledger.without_snapshot()
    if isinstance(event, Swap) and ledger.rules.neighbours:  # both ranks' rows are written
        of, neighbours = ledger.hosts.of, ledger.rules.neighbours
        return any(of[rank] == host for rank in neighbours[event.rank] | neighbours[event.peer])
    return not isinstance(event, Publish) or is_addressed(event.reader_hosts, host)


def current_rows(ledger: Ledger, means: HostMeans) -> list[Payload]:
    """All published rows that ranks of other hosts may read: what a host that comes back has missed.

    Of means, the last one of a host that cannot make another without this one.
    """
    published = ledger.published
    if ledger.rules.averages_hosts:
        others = [host for host in (*means.hosts(published.open), *ledger.hosts.living) if host != ledger.host]
        row = published.mean_row(published.open - 1)
        return [Payload(host, ROW, row, (row,)) for host in others if host in ledger.hosts.living][:1]
    rows = {place.row: rank for rank, shelf in published.shelves.items() for place in shelf.kept.values()}
    rows |= {shelf.current.row: rank for rank, shelf in published.shelves.items() if shelf.current is not None}
    of = ledger.hosts.of
    return [Payload(of[rank], ROW, row, (row,)) for row, rank in sorted(rows.items()) if of[rank] != ledger.host]


def region(layout: ArenaLayout, what: int, number: int) -> tuple[int, int]:
    """(offset, bytes) in the arena. Of a snapshot, the most it can take."""
    if what == ROW:
        return layout.published(number), layout.published_bytes
    if what == BUFFERS:
        return layout.buffer_row(number // layout.world, number % layout.world), layout.buffer_bytes
    return layout.state(number), layout.state_bytes


class Transfers:
    def __init__(self, group: Group, memory: Arena, snapshots: SnapshotStore, positions: dict[int, int]) -> None:
        self._group, self._memory, self._snapshots = group, memory, snapshots
        self.group = group
        self.began = positions  #: host -> up to which place in the log it had what goes with the records at first
        self.fetched = dict(positions)  #: the same now
        self._moved = threading.Condition()
        for host in group.hosts:
            if host != group.host:
                threading.Thread(target=self._serve, args=(host,), name=f"serve {host}", daemon=True).start()

    def fetch(self, payload: Payload, position: int) -> None:
        """Brings the data of the record at a position here. All before that position is here."""
        data = self._group.fetch(lambda: self._ask(payload, position))
        for number in payload.places:
            offset, nbytes = region(self._memory.layout, payload.what, number)
            self._memory.touch(offset, min(nbytes, data.numel()))
            self._memory.region(offset, data.numel()).copy_(data)

    def until_fetched(self, host: int, position: int) -> None:
        """Waits until a host has what goes with the record at a position, unless the group is over."""
        with self._moved:
            while self.fetched.get(host, position + 1) <= position and not self._group.is_over:
                self._moved.wait(0.05)

    def _ask(self, payload: Payload, position: int) -> torch.Tensor:
        group, size = self._group, torch.zeros(1, dtype=torch.int64)
        group.send(torch.tensor([payload.what, payload.number, position], dtype=torch.int64), payload.source, _REQUEST)
        group.receive(size, payload.source, _SIZE)
        data = torch.empty(int(size), dtype=torch.uint8)
        if data.numel():
            group.receive(data, payload.source, _DATA)
        return data

    def _serve(self, host: int) -> None:
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


class Delivery:
    def __init__(
        self,
        log_fd: int,
        inbox: Inbox,
        log: ArenaLog,
        page: SharedPage,
        bell: Bell,
        snapshots: SnapshotStore,
        membership: Membership,
        means: HostMeans,
        host: int,
        has_buffers: bool,
        reduce: Callable[[Round, int], None],
    ) -> None:
        self._fd, self._inbox, self._log, self._page, self._bell = log_fd, inbox, log, page, bell
        self._snapshots, self._membership, self._means = snapshots, membership, means
        self._host, self._has_buffers = host, has_buffers
        self._reduce = reduce
        self._progress = page.progress
        self.position = os.fstat(log_fd).st_size  #: bytes written
        self._published: dict[int, tuple[int, list[int]]] = {}  # rank -> place of its last publication, who gets it
        self._sealed = 0
        log.look()
        self._brought = self.position
        self._frozen = max(log.ledger.published.frozen, default=-1)  # the last iteration whose mean is here

    def deliver(self, entry: Entry) -> None:
        """Writes an entry's records. Records that an earlier agent has written already are left alone."""
        start = self._progress.position
        news = self._log.ledger.news
        for index, event in enumerate(entry.events):
            if start + index * RECORD_BYTES >= self.position:
                record = entry.records[index * RECORD_BYTES : (index + 1) * RECORD_BYTES]
                self._deliver(event, record)
        self._progress = self._page.progress = Progress(entry.number + 1, start + len(entry.records), entry.chain)
        self._inbox.cut(self._log.ledger.hosts.committed_of(self._host, self._page.life) or 0)
        is_own = any(isinstance(event, Commit) and event.host == self._host for event in entry.events)
        if is_own or self._log.ledger.news != news:
            self._bell.ring()

    @property
    def brought(self) -> int:
        """Up to where all data is here: beyond `position`, that of the record that comes there."""
        return max(self._brought, self.position)

    @property
    def entries(self) -> int:
        return self._progress.entries

    def log_position(self) -> LogPosition | None:
        """For a host that begins where this one is. None while an entry is half delivered."""
        progress = self._progress
        if progress.position != self.position:
            return None
        return LogPosition(progress.entries, progress.position, progress.chain, self._log.ledger.to_state())

    def _deliver(self, event: Event, record: bytes) -> None:
        self._bring(event)
        is_back = isinstance(event, Agent) and event.host == self._host
        was_away = is_back and self._host not in self._log.ledger.hosts.living
        if was_away and self._log.ledger.started and self._log.ledger.ended:
            raise OutpaceError(
                f"host {self._host} did not answer for so long that the others went on without it, and they have "
                "finished training meanwhile. Their weights are the result; what this host computed since is lost"
            )
        self._log.foresee(event)
        ledger = self._log.ledger
        if ledger.rules.averages_hosts:
            self._bring_means(ledger)
        append(self._fd, record)
        self.position += RECORD_BYTES
        if was_away:
            for payload in current_rows(ledger, self._means):
                self._fetch(payload)
        sealed = ledger.reducing
        if sealed is not None and tag(sealed) != self._sealed:
            self._sealed = tag(sealed)
            self._reduce(sealed, ledger.hosts.generation)

    def _bring(self, event: Event) -> None:
        if not isinstance(event, WithData):
            return
        ledger = self._log.ledger
        payload = payload_of(event, ledger, self._has_buffers)
        if payload is None:
            return
        if payload.source != self._host:
            if is_for(self._host, event, ledger):
                self._fetch(payload)
            return
        readers = [host for host in ledger.hosts.living if is_for(host, event, ledger)]
        if payload.what == SNAPSHOT:
            self._until_fetched(self.position, readers)  # its buffer may be written again soon
            return
        self._until_fetched(*self._published.get(event.rank, (0, [])))
        self._published[event.rank] = (self.position, readers)

    def _bring_means(self, ledger: Ledger) -> None:
        """Of iterations that the record at this position freezes. Every host makes them at the same position of the
        log. Of a host that was there before the group began, the others get what it has; it does not come again."""
        for number in sorted(number for number in ledger.published.frozen if number > self._frozen):
            self._frozen = number
            hosts = [host for host in self._means.hosts(number) if host in ledger.hosts.living]
            if self._host in hosts:
                self._membership.within_group(
                    partial(self._average, hosts, ledger.published.frozen[number]),
                    lambda group: self._host in group.hosts,
                    self._has_brought,
                )

    def _average(self, hosts: list[int], frozen: Frozen, transfers: Transfers) -> None:
        group, row = transfers.group, self._log.ledger.published.mean_row(frozen.number)
        there = [host for host in hosts if host in group.hosts]
        ahead = next((host for host in there if transfers.began[host] > self.position), None)
        if ahead is not None:
            self._means.forget(row)
            transfers.fetch(Payload(ahead, ROW, row, (row,)), self.position)
            return
        try:
            self._means.average(group, there, frozen, row)
        except RuntimeError as error:
            while not group.is_over:
                self._membership.trouble(group, error)
            raise Abandoned from error

    def _has_brought(self) -> None:
        self._brought = self.position + 1

    def _fetch(self, payload: Payload) -> None:
        if payload.what == SNAPSHOT:
            for buffer in payload.places:
                self._snapshots.forget(buffer)  # whatever comes: what lies there is of another version
        self._membership.within_group(
            lambda transfers: transfers.fetch(payload, self.position), lambda group: payload.source in group.hosts
        )

    def _until_fetched(self, position: int, readers: list[int]) -> None:
        for host in readers:
            self._membership.within_group(
                lambda transfers, host=host: transfers.until_fetched(host, position),  # type: ignore[misc]
                lambda group, host=host: host in group.hosts,  # type: ignore[misc]
            )
